"""AdamW, Adam and SGD against torch's, step by step: bit for bit with its fused ones, and wherever those are wrong or
would not do, with its for-loop."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

from habana_mp import _core, hmp, optim

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("one_thread")]

CLASSES = {"AdamW": (optim.AdamW, torch.optim.AdamW), "Adam": (optim.Adam, torch.optim.Adam)}
CLASSES |= {"SGD": (optim.SGD, torch.optim.SGD)}
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {}),
    ("AdamW", {"weight_decay": 0.0, "betas": (0.3, 0.9)}),
    ("AdamW", {"amsgrad": True, "maximize": True, "eps": 1e-3}),
    ("AdamW", {"lr": torch.tensor(0.01)}),
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
    ("Adam", {"weight_decay": 0.1, "maximize": True, "betas": (0.5, 0.99)}),
    ("SGD", {}),
    ("SGD", {"weight_decay": 0.1, "maximize": True}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
]
every_option = pytest.mark.parametrize(("name", "options"), OPTIONS, ids=[f"{n}-{'-'.join(o)}" for n, o in OPTIONS])
every_class = pytest.mark.parametrize("name", CLASSES)

#: Whole registers: what torch does with an array's last elements differs in the last bit.
SHAPES = [(64, 48), (128,), (16, 3, 4, 4), (0, 4), (1 << 17,)]


def parameters(shapes: list[tuple[int, ...]] = SHAPES) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def set_gradients(params: list[Any], step: int, scale: float = 1.0) -> None:
    """The same for the same step."""
    generator = torch.Generator().manual_seed(step)
    for param in params:
        exponent = torch.randn(param.shape, generator=generator)
        param.grad = torch.randn(param.shape, generator=generator).mul_(10**exponent).mul_(scale)


def make(kind: Any, params: list[Any], options: dict[str, Any]) -> Any:
    return kind(params, **{"lr": 0.01, **options})


def pair(name: str, options: dict[str, Any], **torch_options: Any) -> tuple[Any, Any, list[Any], list[Any]]:
    """Ours and torch's, each with parameters of its own."""
    ours, theirs = parameters(), parameters()
    ours_class, torch_class = CLASSES[name]
    return make(ours_class, ours, options), make(torch_class, theirs, options | torch_options), ours, theirs


def state_of(optimizer: Any) -> list[Any]:
    return [value for param in optimizer.param_groups[0]["params"] for value in optimizer.state[param].values()]


def assert_equal(ours: Any, theirs: Any) -> None:
    """Parameters, gradients and state, bit for bit."""
    for one, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        for param, expected in zip(one["params"], other["params"], strict=True):
            torch.testing.assert_close(param, expected, rtol=0, atol=0, equal_nan=True)
            assert (param.grad is None) == (expected.grad is None)
            if param.grad is not None:
                torch.testing.assert_close(param.grad, expected.grad, rtol=0, atol=0, equal_nan=True)
            assert list(ours.state[param]) == list(theirs.state[expected])
            for key, value in theirs.state[expected].items():
                torch.testing.assert_close(ours.state[param][key], value, rtol=0, atol=0, equal_nan=True)


def assert_close(ours: Any, theirs: Any, rtol: float = 2e-5) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=1e-7)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many weights our kernels stepped, one number a group."""
    numbers: list[int] = []
    write = optim._count_writes

    def count(plan: Any, columns: Any, lowers: Any) -> None:
        numbers.append(len(columns[0]) - len(plan.left_out))
        write(plan, columns, lowers)

    monkeypatch.setattr(optim, "_count_writes", count)
    return numbers


# ---- the same numbers as torch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@every_option
def test_each_step_has_the_bits_of_the_fused_one(
    name: str, options: dict[str, Any], threads: int, taken: list[int]
) -> None:
    torch.set_num_threads(threads)
    ours, theirs, params, others = pair(name, options, fused=True)
    for step in range(6):
        set_gradients(params, step)
        set_gradients(others, step)
        ours.step()
        theirs.step()
        assert_equal(ours, theirs)
    assert taken == [len(SHAPES)] * 6


@pytest.mark.parametrize("foreach", [False, True])
@every_option
def test_steps_are_as_close_to_the_other_implementations_as_the_fused_one(
    name: str, options: dict[str, Any], foreach: bool
) -> None:
    if foreach and isinstance(options.get("lr"), Tensor):
        options = options | {"lr": 0.01}
    ours, theirs, params, others = pair(name, options, foreach=foreach)
    fused_params = parameters()
    fused = make(CLASSES[name][1], fused_params, options | {"fused": True})
    for step in range(6):
        for some in (params, others, fused_params):
            set_gradients(some, step)
        for optimizer in (ours, theirs, fused):
            optimizer.step()
        for mine, fused_one, other in zip(params, fused_params, others, strict=True):
            distance = (mine - other).abs()
            assert torch.equal(distance, (fused_one - other).abs())
    assert_close(params, others)


@pytest.mark.parametrize("size", [1, 7, 15, 17, 1000, 4099])
@every_option
def test_arrays_that_fill_no_register_differ_in_the_last_bit_at_most(
    name: str, options: dict[str, Any], size: int
) -> None:
    mine, other = parameters([(size,)]), parameters([(size,)])
    ours_class, torch_class = CLASSES[name]
    ours, theirs = make(ours_class, mine, options), make(torch_class, other, options | {"fused": True})
    for step in range(4):
        set_gradients(mine, step)
        set_gradients(other, step)
        ours.step()
        theirs.step()
    whole = size // 16 * 16
    assert torch.equal(mine[0][:whole], other[0][:whole])
    assert_close(mine, other, rtol=1e-6)
    assert_close(state_of(ours), state_of(theirs), rtol=1e-6)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1e-42, 3e38, 0.0, -0.0])
@every_option
def test_special_gradients_and_weights_give_what_torch_gives(name: str, options: dict[str, Any], value: float) -> None:
    ours, theirs, params, others = pair(name, options, fused=True)
    for step in range(3):
        for some in (params, others):
            set_gradients(some, step)
            with torch.no_grad():
                some[0].grad[step] = value
                some[1][step::7] = value
                if step == 0:
                    some[4].grad[:] = value
        ours.step()
        theirs.step()
    assert_equal(ours, theirs)


numbers = st.floats(0, 1, allow_nan=False, width=32)


@settings(deadline=None, max_examples=150)
@given(
    name=st.sampled_from(sorted(CLASSES)),
    shapes=st.lists(st.lists(st.integers(0, 20), max_size=4).map(tuple), min_size=1, max_size=5),
    lr=numbers,
    weight_decay=numbers,
    decays=st.tuples(st.floats(0, 0.999), st.floats(0, 0.9999)),
    flags=st.tuples(st.booleans(), st.booleans()),
    steps=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_whatever_the_options_and_shapes_torch_gives_the_same(
    name: str,
    shapes: list[tuple[int, ...]],
    lr: float,
    weight_decay: float,
    decays: tuple[float, float],
    flags: tuple[bool, bool],
    steps: int,
    seed: int,
) -> None:
    options: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "maximize": flags[0]}
    if name == "SGD":
        options |= {"momentum": decays[0], "nesterov": flags[1] and decays[0] > 0}
    else:
        options |= {"betas": decays, "amsgrad": flags[1]}
    mine, other = parameters(shapes), parameters(shapes)
    ours = make(CLASSES[name][0], mine, options)
    theirs = make(CLASSES[name][1], other, options | {"fused": True})
    for step in range(steps):
        set_gradients(mine, seed + step)
        set_gradients(other, seed + step)
        ours.step()
        theirs.step()
    for one, expected in zip(mine, other, strict=True):
        whole = one.numel() // 16 * 16
        assert torch.equal(one.flatten()[:whole], expected.flatten()[:whole])
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-6)


PATH_SCRIPT = """
import sys, torch
sys.path.insert(0, {tests!r})
from test_optim import CLASSES, OPTIONS, make, parameters, set_gradients, state_of
from habana_mp import _core, optim
assert _core.kernels_path() == {path!r}
torch.set_num_threads(int({threads}))
results = []
for name, options in OPTIONS:
    params = parameters([(4099,), (64, 48), (1 << 17,)])
    kept = [torch.empty_like(param, dtype=dtype) for param, dtype in zip(params, (torch.bfloat16, torch.float16) * 2)]
    optim._lower_targets = lambda some: kept
    optimizer = make(CLASSES[name][0], params, options)
    for step in range(3):
        set_gradients(params, step)
        optimizer.step()
    results += [*(param.detach() for param in params), *kept, *state_of(optimizer)]
torch.save(results, sys.stdout.buffer)
"""


def results_of(path: str, threads: int) -> list[Tensor]:
    script = PATH_SCRIPT.format(tests=os.path.dirname(__file__), path=path, threads=threads)
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"HABANA_MP_KERNELS": path}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    results: list[Tensor] = torch.load(io.BytesIO(done.stdout))
    return results


@pytest.fixture(scope="module")
def scalar_results() -> list[Tensor]:
    return results_of("scalar", 1)


@pytest.mark.parametrize("path", _core.kernels_paths())
def test_every_instruction_set_and_number_of_threads_gives_the_same_bits(
    path: str, scalar_results: list[Tensor]
) -> None:
    for one, other in zip(results_of(path, 2), scalar_results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_option
def test_weights_in_half_precision_are_stepped_when_fused(
    name: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    # torch's own fused SGD leaves them as they are.
    ours_class, torch_class = CLASSES[name]
    start = torch.linspace(-1, 1, 64).to(dtype)
    mine, others = ([torch.nn.Parameter(start.clone())] for _ in range(2))
    ours, theirs = make(ours_class, mine, options | {"fused": True}), make(torch_class, others, options)
    for step in range(3):
        for params, optimizer in ((mine, ours), (others, theirs)):
            params[0].grad = torch.full_like(start, 0.5 + step)
            optimizer.step()
        # Fused steps round once, the others after each operation.
        torch.testing.assert_close(mine[0], others[0], rtol=0.02, atol=0.02)
    assert (mine[0] != start).any()


# ---- copies in lower precision ---------------------------------------------------------------------------------------


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[Tensor, Tensor]]:
    """Gives weights lower tensors; what was told of as written is under the key None."""

    def give(params: list[Any], kept: dict[Tensor, Tensor]) -> list[Tensor]:
        written: list[Tensor] = []
        monkeypatch.setattr(optim, "_lower_targets", lambda some: [kept.get(param) for param in some])
        monkeypatch.setattr(optim, "_written", lambda params, _: written.extend(params))
        return written

    return give


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_option
def test_the_copy_is_the_weights_cast_bit_for_bit(
    name: str, options: dict[str, Any], dtype: torch.dtype, copies: Any
) -> None:
    params = parameters([*SHAPES, (5, 7)])
    kept = {param: torch.full_like(param, 7, dtype=dtype) for param in params[1:]}
    written = copies(params, kept)
    optimizer = make(CLASSES[name][0], params, options)
    for step in range(2):
        set_gradients(params, step)
        optimizer.step()
        for param, lower in kept.items():
            assert torch.equal(lower.view(torch.int16), param.detach().to(dtype).view(torch.int16))
    assert written == params[1:] * 2


@every_class
def test_the_copy_of_weights_beyond_the_caches_is_the_weights_cast(name: str, copies: Any) -> None:
    params = parameters([(1 << 23,), (1027, 31)])
    kept = {param: torch.empty_like(param, dtype=torch.bfloat16) for param in params}
    copies(params, kept)
    set_gradients(params, 0)
    CLASSES[name][0](params, lr=0.01).step()
    for param, lower in kept.items():
        assert torch.equal(lower.view(torch.int16), param.detach().bfloat16().view(torch.int16))


def test_the_copys_version_counts_the_writes(copies: Any) -> None:
    params = parameters()
    kept = {param: param.detach().bfloat16() for param in params}
    copies(params, kept)
    before = [lower._version for lower in kept.values()]
    set_gradients(params, 0)
    optim.AdamW(params).step()
    assert [lower._version for lower in kept.values()] == [version + 1 for version in before]


@pytest.mark.parametrize(
    "unfit",
    [
        lambda param: torch.zeros(3, dtype=torch.bfloat16),
        lambda param: torch.zeros_like(param),
        lambda param: torch.zeros(param.shape[::-1], dtype=torch.bfloat16).t(),
        lambda param: torch.zeros_like(param, dtype=torch.bfloat16).to_sparse(),
        lambda param: torch.zeros_like(param, dtype=torch.bfloat16, device="meta"),
    ],
)
def test_a_copy_that_does_not_lie_as_the_weight_is_left_alone(unfit: Any, copies: Any) -> None:
    params = parameters([(64, 48)])
    kept = {params[0]: unfit(params[0])}
    before, version = copy.deepcopy(kept[params[0]]), kept[params[0]]._version
    written = copies(params, kept)
    set_gradients(params, 0)
    optimizer = optim.AdamW(params)
    optimizer.step()
    assert written == []
    assert kept[params[0]]._version == version
    if not before.is_meta:
        assert torch.equal(kept[params[0]].to_dense(), before.to_dense())
    others = parameters([(64, 48)])
    set_gradients(others, 0)
    theirs = torch.optim.AdamW(others, fused=True)
    theirs.step()
    assert_equal(optimizer, theirs)


def test_nothing_is_written_where_gradients_are_infinite(copies: Any) -> None:
    params = parameters()
    kept = {param: torch.full_like(param, 7, dtype=torch.bfloat16) for param in params}
    written = copies(params, kept)
    optimizer = optim.AdamW(params, fused=True)
    set_gradients(params, 0)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(1.0)
    optimizer.step()
    assert written == []
    assert all((lower == 7).all() for lower in kept.values())


# ---- drop-in ---------------------------------------------------------------------------------------------------------


@every_option
def test_states_can_be_exchanged_with_torch_in_both_directions(name: str, options: dict[str, Any]) -> None:
    options = options | {"fused": True}
    ours, theirs, params, others = pair(name, options)
    for step in range(4):
        set_gradients(params, step)
        set_gradients(others, step)
        ours.step()
        theirs.step()
        mine, expected = ours.state_dict(), theirs.state_dict()
        assert mine["state"].keys() == expected["state"].keys()
        for group, other in zip(mine["param_groups"], expected["param_groups"], strict=True):
            assert group.keys() == other.keys()
        # Each goes on with what the other has.
        ours_class, torch_class = CLASSES[name]
        ours, theirs = make(ours_class, params, options), make(torch_class, others, options)
        ours.load_state_dict(copy.deepcopy(expected))
        theirs.load_state_dict(copy.deepcopy(mine))
    assert_equal(ours, theirs)


@every_class
def test_it_is_torchs_class(name: str) -> None:
    ours, torchs = CLASSES[name]
    assert issubclass(ours, torchs)
    assert isinstance(ours(parameters(), lr=0.1), torch.optim.Optimizer)


@every_class
def test_pickled_and_copied_optimizers_go_on(name: str) -> None:
    params = parameters()
    optimizer = CLASSES[name][0](params, lr=0.1)
    set_gradients(params, 0)
    optimizer.step()
    for other in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
        mine = other.param_groups[0]["params"]
        set_gradients(mine, 1)
        other.step()
    set_gradients(params, 1)
    optimizer.step()
    assert_equal(optimizer, other)


@every_class
def test_groups_have_their_own_options(name: str) -> None:
    results = []
    for kind, fused in zip(CLASSES[name], (None, True), strict=True):
        params = parameters()
        optimizer = kind([{"params": params[:2], "weight_decay": 0.5}, {"params": params[2:3]}], lr=0.1, fused=fused)
        optimizer.add_param_group({"params": params[3:], "lr": 0.3, "maximize": True})
        for step in range(3):
            set_gradients(params, step)
            optimizer.step()
        results.append(optimizer)
    assert_equal(*results)


@every_class
def test_a_scheduler_sets_the_rate(name: str) -> None:
    results = []
    for kind, fused in zip(CLASSES[name], (None, True), strict=True):
        params = parameters()
        optimizer = kind(params, lr=0.1, fused=fused)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=6, cycle_momentum=name != "SGD")
        for step in range(5):
            set_gradients(params, step)
            optimizer.step()
            scheduler.step()
        results.append(optimizer)
    assert_equal(*results)


@every_class
def test_a_closure_is_called_with_gradients_enabled_and_its_loss_returned(name: str) -> None:
    params = parameters([(16,)])
    optimizer = CLASSES[name][0](params, lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (params[0] ** 2).sum()
        loss.backward()
        return loss

    first = params[0].detach().clone()
    assert optimizer.step(closure) == (first**2).sum()
    assert not torch.equal(params[0], first)
    assert torch.equal(params[0].grad, 2 * first)


@every_class
def test_hooks_run_once_around_a_step(name: str) -> None:
    CLASSES[name][1](parameters(), lr=0.1)  # torch wraps the step of each class as it is used
    params = parameters()
    optimizer = CLASSES[name][0](params, lr=0.1)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    set_gradients(params, 0)
    optimizer.step()
    assert calls == ["before", "after"]


@every_class
def test_weights_without_gradients_are_left_alone(name: str) -> None:
    params = parameters()
    optimizer = CLASSES[name][0](params, lr=0.1)
    set_gradients(params, 0)
    params[1].grad = None
    before = params[1].detach().clone()
    optimizer.step()
    assert torch.equal(params[1], before)
    assert not optimizer.state[params[1]]
    optimizer.zero_grad()
    optimizer.step()


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize(("name", "options"), [("AdamW", {}), ("Adam", {"amsgrad": True}), ("SGD", {"momentum": 0.9})])
def test_a_grad_scaler_skips_infinite_gradients_and_scales_the_others(
    name: str, options: dict[str, Any], fused: bool | None
) -> None:
    results = []
    for kind, implementation in zip(CLASSES[name], (fused, True), strict=True):
        params = parameters()
        optimizer = make(kind, params, options | {"fused": implementation})
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(5):
            scaler.scale(torch.zeros(()))
            set_gradients(params, step, scale=float(scaler.get_scale()))
            if step == 2:
                params[0].grad[3, 3] = float("inf")
            if step == 3:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 512.0
        results.append(optimizer)
    if fused:
        assert_equal(*results)
    assert_close(*[group["params"] for optimizer in results for group in optimizer.param_groups])


def test_infinite_gradients_of_a_first_step_leave_no_momentum() -> None:
    params = parameters()
    optimizer = optim.SGD(params, lr=0.1, momentum=0.9, fused=True)
    set_gradients(params, 0)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(1.0)
    optimizer.step()
    del optimizer.grad_scale, optimizer.found_inf
    optimizer.step()
    others = parameters()
    theirs = torch.optim.SGD(others, lr=0.1, momentum=0.9, fused=True)
    set_gradients(others, 0)
    theirs.step()
    assert_equal(optimizer, theirs)


@every_option
def test_every_write_is_counted_once(name: str, options: dict[str, Any]) -> None:
    params = parameters()
    optimizer = make(CLASSES[name][0], params, options)
    set_gradients(params, 0)
    optimizer.step()
    tensors = [*params, *(value for value in state_of(optimizer) if value is not None)]
    gradients = [param.grad for param in params]
    before = [one._version for one in (*tensors, *gradients)]
    optimizer.step()
    after = [one._version for one in (*tensors, *gradients)]
    assert after == [version + 1 for version in before[: len(tensors)]] + before[len(tensors) :]


@every_class
def test_a_backward_that_needs_the_old_weights_raises(name: str) -> None:
    weight = torch.nn.Parameter(torch.randn(8, 8))
    x = torch.randn(8, 8, requires_grad=True)
    loss = (x @ weight).sum()
    weight.grad = torch.randn(8, 8)
    CLASSES[name][0]([weight], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@every_class
def test_a_step_while_converted_is_the_same(name: str) -> None:
    results = []
    for kind in CLASSES[name]:
        params = parameters()
        optimizer = kind(params, lr=0.1, fused=True)
        hmp.convert("O1")
        for step in range(2):
            set_gradients(params, step)
            optimizer.step()
        hmp.restore()
        results.append(optimizer)
    assert_equal(*results)


def kept_weight() -> tuple[torch.nn.Parameter, Tensor]:
    """A weight whose cast is kept, with a gradient; and an input for it."""
    weight, x = torch.nn.Parameter(torch.randn(64, 64)), torch.randn(4, 64)
    for _ in range(2):
        torch.nn.functional.linear(x, weight).sum().backward()
    return weight, x


def assert_cast_is_fresh(weight: torch.nn.Parameter, x: Tensor) -> None:
    with torch.no_grad():
        ours = torch.nn.functional.linear(x, weight)
        with hmp.disable_casts():
            plain = torch.nn.functional.linear(x.bfloat16(), weight.bfloat16())
    assert torch.equal(ours, plain)


@every_class
def test_a_write_of_another_thread_during_a_step_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = optim._written
    hmp.convert()
    weight, x = kept_weight()
    other = torch.optim.SGD([weight], lr=0.5)

    def write_besides(params: list[Tensor], lowers: list[Tensor]) -> None:
        assert len(lowers) == 1
        thread = threading.Thread(target=other.step)
        thread.start()
        thread.join()
        written(params, lowers)

    monkeypatch.setattr(optim, "_written", write_besides)
    CLASSES[name][0]([weight], lr=0.1).step()
    assert_cast_is_fresh(weight, x)


@every_class
def test_a_write_is_counted_after_it_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cast that another thread makes between the two would pass for one of the new values."""
    count = optim._count_writes
    weight, _ = kept_weight()
    before, versions = weight.detach().clone(), []

    def look_first(*given: Any) -> None:
        versions.append(weight._version)
        assert not torch.equal(weight, before)
        count(*given)

    monkeypatch.setattr(optim, "_count_writes", look_first)
    CLASSES[name][0]([weight], lr=0.1).step()
    assert versions == [weight._version - 1]


def test_a_hook_of_somebody_else_may_write_after_a_step_without_a_word() -> None:
    factors = torch.ones(64, 64)
    factors[1] = 3.0

    def write_unseen(*_: Any) -> None:
        below_autograd = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        torch.ops.aten.mul_.Tensor.redispatch(below_autograd, weight, factors)

    handle = register_optimizer_step_post_hook(write_unseen)
    try:
        hmp.convert()
        weight, x = kept_weight()
        with torch.no_grad():
            optim.SGD([weight], lr=0.1).step()
    finally:
        handle.remove()
    assert_cast_is_fresh(weight, x)


# ---- what is torch's -------------------------------------------------------------------------------------------------


def transposed(shape: tuple[int, int]) -> Tensor:
    return torch.randn(shape[::-1], generator=torch.Generator().manual_seed(3)).t()


def channels_last(shape: tuple[int, int, int, int]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("value", [transposed((32, 48)), channels_last((4, 16, 3, 3))], ids=["transposed", "channels"])
@every_option
def test_strides_that_are_alike_are_ours(name: str, options: dict[str, Any], value: Tensor, taken: list[int]) -> None:
    results = []
    for kind, fused in zip(CLASSES[name], (None, False), strict=True):
        param = torch.nn.Parameter(value.clone())
        optimizer = make(kind, [param], options | {"fused": fused})
        for step in range(3):
            param.grad = value.clone().sin_().add_(step)
            optimizer.step()
        assert param.stride() == value.stride()
        results.append(param)
    assert_close([results[0]], [results[1]])
    assert taken == [1, 1, 1]


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    ("value", "gradient"),
    [
        (transposed((32, 48)), torch.randn(32, 48)),
        (torch.randn(32, 48), transposed((32, 48))),
        (torch.randn(64), torch.ones(1).expand(64)),
        (torch.randn(64), torch.randn(128)[::2]),
        (channels_last((4, 16, 3, 3)), torch.randn(4, 16, 3, 3)),
    ],
    ids=["transposed weight", "transposed gradient", "expanded gradient", "every other", "channels last"],
)
@every_option
def test_strides_that_differ_are_stepped_right(
    name: str, options: dict[str, Any], value: Tensor, gradient: Tensor, fused: bool | None, scaled: bool
) -> None:
    if scaled and (not fused or gradient.stride() == (0,)):
        return  # nobody scales there; one number cannot be scaled 64 times
    param, other = torch.nn.Parameter(value.clone()), torch.nn.Parameter(value.clone())
    ours = make(CLASSES[name][0], [param], options | {"fused": fused})
    theirs = make(CLASSES[name][1], [other], options | {"fused": False})
    for _ in range(3):
        param.grad, other.grad = gradient, gradient.clone()
        if scaled:
            param.grad = torch.empty_strided(gradient.shape, gradient.stride()).copy_(gradient * 4)
            ours.grad_scale, ours.found_inf = torch.tensor(4.0), torch.tensor(0.0)
        ours.step()
        theirs.step()
    assert_close([param], [other])


def a_gap() -> Any:
    return torch.nn.Parameter(torch.arange(64.0)[::2])


def lower() -> Any:
    return torch.nn.Parameter(torch.arange(32.0).bfloat16())


def double() -> Any:
    return torch.nn.Parameter(torch.arange(32.0).double())


def complex_numbers() -> Any:
    return torch.nn.Parameter(torch.complex(torch.arange(32.0), torch.ones(32)))


class OwnTensor(torch.Tensor):
    pass


def own_class() -> Any:
    return torch.nn.Parameter(torch.arange(32.0).as_subclass(OwnTensor))


def negative_view() -> Any:
    return torch.nn.Parameter(torch._neg_view(torch.arange(32.0)))


UNFIT = [a_gap, lower, double, complex_numbers, own_class, negative_view]


@pytest.mark.parametrize("unfit", UNFIT)
@every_option
def test_unfit_weights_go_torchs_way_among_others(
    name: str, options: dict[str, Any], unfit: Callable[[], Any], taken: list[int]
) -> None:
    results = []
    for kind in CLASSES[name]:
        params = [torch.nn.Parameter(torch.arange(16.0)), unfit(), torch.nn.Parameter(torch.arange(48.0))]
        optimizer = make(kind, params, options)
        for step in range(3):
            for param in params:
                param.grad = torch.full_like(param, 0.3 + step)
            optimizer.step()
        results.append(params)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=0)
    assert_close([results[0][0], results[0][2]], [results[1][0], results[1][2]])
    assert taken == [2, 2, 2]


def test_a_negative_gradient_is_read_as_such(taken: list[int]) -> None:
    param, other = torch.nn.Parameter(torch.zeros(32)), torch.nn.Parameter(torch.zeros(32))
    param.grad, other.grad = torch._neg_view(torch.ones(32)), -torch.ones(32)
    optim.SGD([param], lr=1.0).step()
    torch.optim.SGD([other], lr=1.0).step()
    assert torch.equal(param, other)
    assert taken == [0]


def test_a_sparse_gradient_is_torchs(taken: list[int]) -> None:
    results = []
    for kind in CLASSES["SGD"]:
        params = [torch.nn.Parameter(torch.ones(8, 4)), torch.nn.Parameter(torch.ones(16))]
        optimizer = kind(params, lr=0.5, momentum=0.9)
        for _ in range(3):
            params[0].grad = torch.sparse_coo_tensor([[0, 3]], torch.ones(2, 4), (8, 4))
            params[1].grad = torch.ones(16)
            optimizer.step()
        results.append(params)
    assert_close(*results)
    assert taken == [1, 1, 1]


@pytest.mark.parametrize("name", ["AdamW", "Adam"])
def test_a_sparse_gradient_raises_before_anything_is_written(name: str) -> None:
    params = [torch.nn.Parameter(torch.ones(16)), torch.nn.Parameter(torch.ones(8, 4))]
    params[0].grad = torch.ones(16)
    params[1].grad = torch.sparse_coo_tensor([[0, 3]], torch.ones(2, 4), (8, 4))
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        CLASSES[name][0](params).step()
    assert torch.equal(params[0], torch.ones(16))


def test_what_torch_refuses_is_refused_before_anything_is_written() -> None:
    params = [torch.nn.Parameter(torch.ones(16)), torch.nn.Parameter(torch.ones(8, 4))]
    params[0].grad = torch.ones(16)
    params[1].grad = torch.sparse_coo_tensor([[0, 3]], torch.ones(2, 4), (8, 4))
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        optim.SGD(params, lr=0.1, momentum=0.9, fused=True).step()
    assert torch.equal(params[0], torch.ones(16))


class Own(Tensor):
    pass


@pytest.mark.parametrize("kind_of_tensor", [Tensor, Own])
@every_class
def test_weights_that_share_memory_are_stepped_in_order(name: str, kind_of_tensor: type, taken: list[int]) -> None:
    results = []
    for kind in CLASSES[name]:
        memory = torch.arange(96.0)
        params = [torch.nn.Parameter(memory[:64]), torch.nn.Parameter(memory[32:].as_subclass(kind_of_tensor))]
        optimizer = kind(params, lr=0.1, weight_decay=0.1)
        for step in range(3):
            set_gradients(params, step)
            optimizer.step()
        results.append(memory)
    assert torch.equal(*results)
    assert taken == [0, 0, 0]


@pytest.mark.parametrize("name", ["AdamW", "Adam"])
def test_a_count_of_steps_that_two_weights_share_goes_on_in_order(name: str) -> None:
    results = []
    for kind in CLASSES[name]:
        params = [torch.nn.Parameter(torch.ones(16)), torch.nn.Parameter(torch.ones(16, dtype=torch.float64))]
        optimizer = kind(params, lr=0.1)
        for factor in (1.0, -0.5):
            for param in params:
                param.grad = factor * torch.ones_like(param)
            optimizer.step()
            optimizer.state[params[1]]["step"] = optimizer.state[params[0]]["step"]
        results.append([*params, *state_of(optimizer)])
    assert_close(*results)


def test_a_weight_that_is_its_own_gradient_is_torchs(taken: list[int]) -> None:
    param = torch.nn.Parameter(torch.arange(64.0))
    param.grad = param.detach()
    optim.SGD([param], lr=0.5).step()
    assert torch.equal(param, torch.arange(64.0) / 2)
    assert taken == [0]


def test_capturable_is_refused_as_by_torch() -> None:
    params = parameters()
    set_gradients(params, 0)
    with pytest.raises(AssertionError, match="capturable"):
        optim.AdamW(params, capturable=True).step()


@pytest.mark.parametrize("name", ["AdamW", "Adam"])
def test_capturable_is_nothing_to_the_fused_step_whatever_the_strides(name: str) -> None:
    def step(kind: Any, value: Tensor, grad: Tensor, **options: Any) -> Tensor:
        param = torch.nn.Parameter(value)
        param.grad = grad
        kind([param], lr=0.1, **options).step()
        return param

    ours, theirs = CLASSES[name]
    options = {"fused": True, "capturable": True}
    images = torch.ones(8, 4, 1, 1).to(memory_format=torch.channels_last)
    assert torch.equal(*(step(kind, torch.ones(8, 4, 1, 1), images, **options) for kind in (ours, theirs)))
    # Where weights have gaps torch's fused step is wrong, and ours is the for-loop.
    with_gaps = step(ours, torch.ones(16, 4)[::2], torch.ones(8, 4), **options)
    assert torch.equal(with_gaps, step(theirs, torch.ones(8, 4), torch.ones(8, 4), foreach=False))


@every_class
def test_a_scale_is_for_the_fused_step_only(name: str) -> None:
    for kind in CLASSES[name]:
        params = parameters()
        set_gradients(params, 0)
        optimizer = kind(params, lr=0.1)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)
        with pytest.raises(AssertionError, match="grad_scale"):
            optimizer.step()
        assert all(torch.equal(*both) for both in zip(params, parameters(), strict=True))


@every_class
def test_a_differentiable_step_is_recorded(name: str, taken: list[int]) -> None:
    results = []
    for kind in CLASSES[name]:
        gradient = torch.linspace(0.1, 1, 16).requires_grad_()
        weight = torch.ones(16).requires_grad_().clone()
        weight.grad = gradient
        kind([weight], lr=0.1, differentiable=True, weight_decay=0.1).step()
        (weight**2).sum().backward()
        results.append(gradient.grad)
    assert torch.equal(*results)
    assert not taken


@every_class
def test_dispatch_modes_see_what_torch_does(name: str, taken: list[int]) -> None:
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function.name())
            return function(*args, **(kwargs or {}))

    params = parameters()
    optimizer = CLASSES[name][0](params, lr=0.1)
    set_gradients(params, 0)
    with Watch():
        optimizer.step()
    assert any("add" in one for one in seen)
    assert taken == [0]


@every_class
def test_weights_without_memory_are_torchs(name: str) -> None:
    with FakeTensorMode():
        params = [torch.nn.Parameter(torch.ones(16))]
        params[0].grad = torch.ones(16)
        CLASSES[name][0](params, lr=0.1).step()
    param = torch.nn.Parameter(torch.ones(16, device="meta"))
    param.grad = torch.ones(16, device="meta")
    CLASSES[name][0]([param], lr=0.1).step()
    zero = torch.nn.Parameter(torch.ones(16))
    zero.grad = torch._efficientzerotensor(16)
    CLASSES[name][0]([zero], lr=0.1, weight_decay=0).step()
    assert torch.equal(zero, torch.ones(16))


@every_class
def test_a_lazy_clone_keeps_its_values(name: str) -> None:
    original = torch.ones(64)
    clone = torch._lazy_clone(original)
    param = torch.nn.Parameter(clone)
    param.grad = torch.ones(64)
    CLASSES[name][0]([param], lr=0.1).step()
    assert torch.equal(original, torch.ones(64))
    assert not torch.equal(param, original)


@every_class
def test_weights_of_inference_mode_are_refused_outside_as_by_torch(name: str) -> None:
    with torch.inference_mode():
        weight = torch.ones(16)
    weight.grad = torch.ones(16)
    with pytest.raises(RuntimeError, match="inference tensor"):
        CLASSES[name][0]([weight], lr=0.1).step()


@every_class
def test_a_step_in_inference_mode_is_a_step(name: str) -> None:
    results = []
    for kind in CLASSES[name]:
        params = parameters()
        set_gradients(params, 0)
        with torch.inference_mode():
            kind(params, lr=0.1, fused=True).step()
        results.append(params)
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@every_class
def test_a_compiled_step_is_a_step(name: str) -> None:
    results = []
    for kind in CLASSES[name]:
        params = parameters([(16,), (8, 8)])
        optimizer = kind(params, lr=0.1)
        step = torch.compile(optimizer.step, backend="eager")
        for number in range(3):
            set_gradients(params, number)
            step()
        results.append(params)
    assert_close(*results)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_a_rate_in_a_tensor_breaks_no_graph_that_torchs_step_leaves_whole(name: str) -> None:
    breaks = []
    for kind in CLASSES[name]:
        torch._dynamo.reset()
        counters.clear()
        params = parameters([(16,), (8, 8)])
        optimizer = kind(params, lr=torch.tensor(0.1))
        step = torch.compile(lambda optimizer=optimizer: optimizer.step(), backend="eager")
        for number in range(3):
            set_gradients(params, number)
            step()
        breaks.append({reason.split("\n")[0] for reason in counters["graph_break"]})
    # Torch 2.15 does not look into the state of a class that it does not know.
    assert breaks[0] - {"Skip inlining `torch.compiler.disable()`d function"} <= breaks[1]


@every_class
def test_other_threads_run_during_a_step(name: str) -> None:
    params = parameters([(1 << 22,)])
    set_gradients(params, 0)
    optimizer = CLASSES[name][0](params, lr=0.1)
    optimizer.step()
    stop, counted = threading.Event(), [0]

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)  # gives the GIL up at once, and asks for it again

    thread = threading.Thread(target=count)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)  # nobody has to give it up because of the time
    try:
        before = counted[0]
        for _ in range(300):
            optimizer.step()
            if counted[0] != before:
                break
        assert counted[0] > before
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()


def test_lists_of_different_lengths_are_refused() -> None:
    weight = [torch.ones(4)]
    for wrong in ({"grads": []}, {"states": [[]]}, {"lowers": []}, {"steps": [None, None]}, {"states": [weight] * 4}):
        given: dict[str, Any] = {"params": weight, "grads": weight, "states": [], "steps": [], "lowers": [None]}
        with pytest.raises(ValueError, match="as long as that of the parameters"):
            _core.StepPlan(**(given | wrong), writes_grads=False)
