"""The kernels that step LAMB, LARS and what else torch has not fused: the same bits everywhere, and torch's results."""

from __future__ import annotations

import textwrap

import pytest

from habana_mp import _core
from helpers.gaudi import gaudi

pytestmark = pytest.mark.processor

STEPS = """
from habana_frameworks.torch.hpex.optimizers import FusedAdamW, FusedLamb, FusedLars, FusedSGD
from habana_mp.patches.torch import kernel_steps

SHAPES = [(4099,), (64, 48), (1 << 17,), (3,), (1,), (0, 4), (5, 1031)]
KINDS = {
    "AdamW": lambda params: FusedAdamW(params, lr=0.01, weight_decay=0.1, bias_correction=False),
    "Lamb": lambda params: FusedLamb(params, lr=0.01),
    "Lamb, all else": lambda params: FusedLamb(
        params, lr=0.01, bias_correction=False, adam_w_mode=False, grad_averaging=False, max_grad_norm=None
    ),
    "Lars": lambda params: FusedLars(FusedSGD(params, lr=0.1, momentum=0.9, weight_decay=0.1), [1, 0] * 3 + [1]),
    "Lars, plain": lambda params: FusedLars(FusedSGD(params, lr=0.1), [1] * 7, eps=0.0),
}


def stepped(kind, layout=lambda grad: grad, times=3):
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    with torch.no_grad():
        params[3].zero_()  # has no norm
    optimizer = KINDS[kind](params)
    for step in range(times):
        for i, param in enumerate(params):
            grad = torch.randn(param.shape, generator=generator)
            param.grad = None if i == 4 and step == 1 else layout(grad * (i != 1 or step != 2))
        optimizer.step()
    return [param.detach() for param in params], optimizer
"""

DIGEST = """
import hashlib
for kind in KINDS:
    params, optimizer = stepped(kind)
    states = [value for param in optimizer.param_groups[0]["params"] for value in optimizer.state[param].values()]
    values = [value for value in (*params, *states) if value is not None]
    print(kind, hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest())
"""


def digests(path: str, threads: int) -> list[str]:
    code = STEPS + f"torch.set_num_threads({threads})\n" + DIGEST
    return gaudi(code, HABANA_MP_KERNELS=path, HABANA_MP_GAUDI="cpu")


@pytest.fixture(scope="module")
def of_scalars() -> list[str]:
    return digests("scalar", 1)


@pytest.mark.parametrize("path", _core.kernels_paths())
def test_every_instruction_set_and_number_of_threads_gives_the_same_bits(path: str, of_scalars: list[str]) -> None:
    assert digests(path, 2) == of_scalars
    assert len(set(of_scalars)) == 5


def test_weights_that_the_kernels_do_not_step_are_stepped_alike() -> None:
    code = """
        counts = []
        count = kernel_steps.count_writes
        def counted(plan, *given):
            counts.append(len(plan.left_out))
            count(plan, *given)
        kernel_steps.count_writes = counted

        def apart(grad):
            \"\"\"Its elements lie two apart.\"\"\"
            return torch.stack([grad, grad], -1)[..., 0]

        for kind in KINDS:
            ours, _ = stepped(kind)
            assert max(counts) == 0 < len(counts), counts
            counts.clear()
            torchs, _ = stepped(kind, apart)
            assert all(count >= 4 for count in counts), counts
            counts.clear()
            for one, other in zip(ours, torchs):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        print("alike")
        """
    assert gaudi(STEPS + textwrap.dedent(code), HABANA_MP_GAUDI="cpu") == ["alike"]


def test_averages_in_bfloat16_move_weights_as_those_in_float32_do() -> None:
    code = """
        for dtype in (torch.float32, torch.bfloat16):
            param = torch.nn.Parameter(torch.ones(40))
            optimizer = FusedLamb([param], lr=0.01, dtype=dtype)
            for _ in range(10):
                param.grad = torch.linspace(-1, 1, 40)
                optimizer.step()
            assert optimizer.state[param]["exp_avg"].dtype is dtype
            print(round(float(param.std()), 2))
        """
    one, other = gaudi(STEPS + textwrap.dedent(code))
    assert one == other != "0.0"


def test_kept_casts_of_weights_are_written_with_them() -> None:
    code = """
        from habana_mp import hmp
        hmp.convert()
        for kind in KINDS:
            generator = torch.Generator().manual_seed(1)
            params = [torch.nn.Parameter(torch.randn(96, 96, generator=generator)) for _ in range(7)]
            optimizer, x = KINDS[kind](params), torch.randn(4, 96)
            for _ in range(3):
                sum(torch.nn.functional.linear(x, param).float().pow(2).sum() for param in params).backward()
                optimizer.step()
                optimizer.zero_grad()
            for param in params:
                now = torch.nn.functional.linear(x, param)
                with hmp.disable_casts():
                    assert torch.equal(now, torch.nn.functional.linear(x.bfloat16(), param.bfloat16()))
        print("fresh")
        """
    assert gaudi(STEPS + textwrap.dedent(code)) == ["fresh"]


def test_a_scaler_unscales_gradients_before_lars_asks_for_their_norms() -> None:
    code = """
        results = []
        for scale in (None, 1024.0):
            param = torch.nn.Parameter(torch.ones(8))
            optimizer = FusedLars(torch.optim.SGD([param], lr=1.0, weight_decay=0.1, fused=True), [1], eps=0.5)
            scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
            for _ in range(3):
                optimizer.zero_grad()
                scaler.scale((param * torch.arange(8)).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
            results.append(param.detach())
        torch.testing.assert_close(*results)
        print(float(results[0][7]) < 1)
        """
    assert gaudi(STEPS + textwrap.dedent(code)) == ["True"]
