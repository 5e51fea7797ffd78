"""Regions together with what runs programs in other ways: torch.compile, checkpointing, traces, threads, two ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import BACKENDS, assert_same, run_script, skip_where_no_region_is_exported
from distributed_worker import on_two_ranks, ranks
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
X = torch.linspace(-1, 1, 64).reshape(8, 8)


@pytest.fixture(scope="module", autouse=True)
def processes() -> Any:
    yield
    ranks.stop()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def trained(call: Callable[..., torch.Tensor], parameters: Any) -> list[torch.Tensor]:
    loss = F.cross_entropy(call(X).float(), torch.arange(8) % 4)
    loss.backward()
    return [loss, *(one.grad for one in parameters)]


# ---- torch.compile -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_code_is_not_used_in_another_region(backend: str) -> None:
    compiled = torch.compile(lambda x: torch.mm(x, x), backend=backend, fullgraph=True)
    for _ in range(2):
        assert compiled(X).dtype is FP32
        for dtype in (BF16, FP16):
            with hmp.autocast("cpu", dtype):
                assert compiled(X).dtype is dtype
                with hmp.autocast("cpu", enabled=False):
                    assert compiled(X).dtype is FP32
        with hmp.autocast("cpu", preset="hmp-guide-o1"), hmp.autocast("cpu"):
            assert compiled(X).dtype is BF16


@pytest.mark.usefixtures("compiled_anew")
def test_code_compiled_before_the_first_region_is_not_used_in_it() -> None:
    code = (
        "import torch\n"
        "x = torch.ones(2, 2)\n"
        "compiled = torch.compile(lambda x: torch.mm(x, x), backend='aot_eager')\n"
        "print(compiled(x).dtype)\n"
        "from habana_mp import hmp\n"
        "with hmp.autocast('cpu'): print(compiled(x).dtype)\n"
        "print(compiled(x).dtype)\n"
    )
    done = run_script(code)
    assert done.stdout.split() == ["torch.float32", "torch.bfloat16", "torch.float32"], done.stderr


def nested(x: torch.Tensor) -> list[torch.Tensor]:
    results = [torch.mm(x, x)]
    with hmp.autocast("cpu"):
        results.append(torch.mm(x, x))
        with hmp.autocast("cpu", FP16):
            results.append(torch.mm(x, x))
            with hmp.disable_casts():
                results.append(torch.mm(x, x))
                with hmp.autocast("cpu"):
                    results.append(torch.mm(x, x))
                results.append(torch.mm(x, x))
        with torch.autocast("cpu", enabled=False):
            results.append(torch.mm(x, x))
            with hmp.autocast("cpu"):
                results.append(torch.mm(x, x))
        with hmp.autocast("cpu", enabled=False):
            results.append(torch.mm(x, x))
        results.append(torch.mm(x, x))
    return [*results, torch.mm(x, x)]


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("under", ["nothing", "a region", "convert"])
def test_regions_inside_of_compiled_code_are_traced_whole(backend: str, under: str) -> None:
    with hmp.autocast("cpu", FP16, enabled=under == "a region"):
        if under == "convert":
            hmp.convert(preset="torch-cpu", dtype=FP16)
        outside = torch.mm(X, X).dtype
        eager = nested(X)
        compiled = torch.compile(nested, backend=backend, fullgraph=True)(X)
    expected = [outside, BF16, FP16, FP32, BF16, FP32, FP32, BF16, FP32, BF16, outside]
    assert [one.dtype for one in eager] == expected
    assert_same(compiled, eager)


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_region_goes_on_after_a_graph_break_and_holds_in_what_is_called_there(backend: str) -> None:
    def called(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return torch.mm(x, x)

    def broken(x: torch.Tensor) -> list[torch.Tensor]:
        with hmp.autocast("cpu"):
            first = torch.mm(x, x)
            torch._dynamo.graph_break()
            second = torch.mm(x, x)
            third = called(x)
        return [first, second, third, torch.mm(x, x), called(x)]

    compiled = torch.compile(broken, backend=backend)
    for _ in range(2):
        assert [one.dtype for one in compiled(X)] == [BF16, BF16, BF16, FP32, FP32]
        with hmp.autocast("cpu", FP16):
            assert [one.dtype for one in compiled(X)] == [BF16, BF16, BF16, FP16, FP16]


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("error:Dynamo does not know")
def test_a_region_made_outside_is_entered_in_compiled_code(backend: str) -> None:
    region = hmp.autocast("cpu")

    def uses(x: torch.Tensor) -> list[torch.Tensor]:
        with region:
            inside = torch.mm(x, x)
        return [inside, torch.mm(x, x)]

    assert [one.dtype for one in torch.compile(uses, backend=backend)(X)] == [BF16, FP32]


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_decorated_function_is_compiled_and_called_from_compiled_code(backend: str) -> None:
    @hmp.autocast("cpu")
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, x)

    assert torch.compile(decorated, backend=backend)(X).dtype is BF16
    both = torch.compile(lambda x: (decorated(x), torch.mm(x, x)), backend=backend, fullgraph=True)(X)
    assert [one.dtype for one in both] == [BF16, FP32]


@pytest.mark.usefixtures("compiled_anew")
def test_a_region_in_compiled_code_speaks_inside_of_a_wrapped_function() -> None:
    def inner(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with hmp.autocast("cpu"):
            inside = torch.mm(x, x)
        return inside, torch.mm(x, x)

    wrapped = hmp.op_wrap(torch.compile(inner, backend="eager", fullgraph=True), to="fp32")
    with hmp.autocast("cpu", FP16):
        assert [one.dtype for one in wrapped(X)] == [BF16, FP32]


@pytest.mark.usefixtures("compiled_anew")
def test_an_exception_in_compiled_code_leaves_the_region() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        with hmp.autocast("cpu"):
            return torch.mm(x, x).reshape(3, 5)

    with pytest.raises(Exception, match=r"shape|size"):
        torch.compile(fails, backend="aot_eager")(X)
    assert torch.mm(X, X).dtype is FP32


@pytest.mark.usefixtures("compiled_anew", "one_thread")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("inside", [True, False], ids=["region inside", "region outside"])
def test_a_compiled_training_step_is_close_to_the_eager_one(backend: str, inside: bool) -> None:
    def forward(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with hmp.autocast("cpu"):
            return net(x)

    eager, net = model(), model()
    expected = trained(lambda x: forward(eager, x), eager.parameters())
    if inside:
        compiled = torch.compile(forward, backend=backend, fullgraph=True)
        found = trained(lambda x: compiled(net, x), net.parameters())
    else:
        whole = torch.compile(net, backend=backend, fullgraph=True)
        with hmp.autocast("cpu"):
            found = trained(whole, net.parameters())
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other, rtol=3e-2, atol=3e-3)


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_keeps_the_casts_of_its_regions(strict: bool) -> None:
    skip_where_no_region_is_exported(strict)

    class Exported(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with hmp.autocast("cpu"):
                first = torch.mm(x, x)
                with hmp.disable_casts():
                    second = torch.mm(x, x)
                third = torch.mm(x, x)
            return first, second, third, torch.mm(x, x)

    expected = Exported()(X)
    assert [one.dtype for one in expected] == [BF16, FP32, BF16, FP32]
    program = torch.export.export(Exported(), (X,), strict=strict)
    assert torch.mm(X, X).dtype is FP32
    hmp.restore()
    assert_same(program.module()(X), expected)


# ---- checkpointing, traces, threads ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("under", ["nothing", "convert", "another region"])
def test_a_checkpointed_block_is_computed_again_as_in_its_region(reentrant: bool, under: str) -> None:
    def step(call: Callable[..., Any]) -> list[torch.Tensor]:
        net = model()
        with hmp.autocast("cpu"):
            out = call(net, X.clone().requires_grad_())
        assert out.dtype is BF16
        with hmp.autocast("cpu", FP16, enabled=under == "another region"):
            out.float().square().sum().backward()
        return [out, *(one.grad for one in net.parameters() if one.grad is not None)]

    if under == "convert":
        hmp.convert("O2", dtype=FP16)
    plain = step(lambda net, x: net(x))
    assert_same(step(lambda net, x: checkpoint(net, x, use_reentrant=reentrant)), plain)


def test_a_frozen_trace_of_a_region_runs_without_habana_mp(tmp_path: Path) -> None:
    net = model().eval()
    with torch.no_grad():
        with hmp.autocast("cpu"):
            expected = net(X)
            traced = torch.jit.freeze(torch.jit.trace(net, X))
        hmp.restore()
        assert_same(traced(X), expected)
    traced.save(str(tmp_path / "traced.pt"))
    torch.save([X, expected], tmp_path / "values.pt")
    code = (
        "import sys\n"
        "sys.modules['habana_mp'] = None\n"
        "import torch\n"
        "x, expected = torch.load('values.pt')\n"
        "result = torch.jit.load('traced.pt')(x)\n"
        "print(result.dtype, torch.equal(result, expected))\n"
    )
    done = run_script(code, cwd=tmp_path)
    assert done.stdout.split() == ["torch.bfloat16", "True"], done.stderr


@pytest.mark.usefixtures("one_thread")
def test_threads_in_regions_of_their_own_do_not_disturb_each_other() -> None:
    failures: list[Any] = []
    regions = [hmp.autocast("cpu", BF16), hmp.autocast("cpu", FP16), hmp.autocast("cpu", enabled=False)]
    start = threading.Barrier(6, timeout=30)

    def work(number: int) -> None:
        region, wanted = regions[number % 3], (BF16, FP16, FP32)[number % 3]
        start.wait()
        for _ in range(300):
            with region:
                inside = torch.mm(X, X).dtype
            if inside is not wanted or torch.mm(X, X).dtype is not FP32:
                failures.append((number, inside))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# ---- two ranks -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("dtype", [BF16, FP16])
@on_two_ranks
def test_two_ranks_train_as_under_torch_autocast(dtype: torch.dtype) -> None:
    def step(region: Any) -> list[torch.Tensor]:
        net = DistributedDataParallel(model())
        torch.manual_seed(dist.get_rank())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=dtype is FP16)
        for _ in range(3):
            optimizer.zero_grad()
            with region:
                loss = F.cross_entropy(net(torch.randn(8, 8)), torch.arange(8) % 4)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return [loss, *net.parameters()]

    ours = step(hmp.autocast("cpu", dtype))
    assert_same(ours, step(torch.autocast("cpu", dtype)))
    weights = [torch.empty_like(ours[1]) for _ in range(2)]
    dist.all_gather(weights, ours[1].detach())
    assert torch.equal(weights[0], weights[1])
