"""Regions of hmp.autocast under torch.compile and torch.export."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.models import small_network
from helpers.processes import run_script

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
X = torch.linspace(-1, 1, 64).reshape(8, 8)


def trained(call: Callable[..., torch.Tensor], parameters: Any) -> list[torch.Tensor]:
    loss = F.cross_entropy(call(X).float(), torch.arange(8) % 4)
    loss.backward()
    return [loss, *(one.grad for one in parameters)]


@pytest.mark.usefixtures("compiled_anew")
def test_compiled_code_is_not_used_in_another_region() -> None:
    compiled = torch.compile(lambda x: torch.mm(x, x), backend="aot_eager", fullgraph=True)
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
@pytest.mark.parametrize("under", ["nothing", "a region", "convert"])
def test_regions_inside_of_compiled_code_are_traced_whole(under: str) -> None:
    outside = FP32 if under == "nothing" else FP16
    if under == "convert":
        hmp.convert(preset="torch-cpu", dtype=FP16)
    with hmp.autocast("cpu", FP16) if under == "a region" else contextlib.nullcontext():
        eager = nested(X)
        compiled = torch.compile(nested, backend="aot_eager", fullgraph=True)(X)
    expected = [outside, BF16, FP16, FP32, BF16, FP32, FP32, BF16, FP32, BF16, outside]
    assert [one.dtype for one in eager] == expected
    assert_same(compiled, eager)


@pytest.mark.usefixtures("compiled_anew")
def test_a_region_goes_on_after_a_graph_break_and_holds_in_what_is_called_there() -> None:
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

    compiled = torch.compile(broken, backend="aot_eager")
    for _ in range(2):
        assert [one.dtype for one in compiled(X)] == [BF16, BF16, BF16, FP32, FP32]
        with hmp.autocast("cpu", FP16):
            assert [one.dtype for one in compiled(X)] == [BF16, BF16, BF16, FP16, FP16]


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.filterwarnings("error:Dynamo does not know")
def test_a_region_made_outside_is_entered_in_compiled_code() -> None:
    region = hmp.autocast("cpu")

    def uses(x: torch.Tensor) -> list[torch.Tensor]:
        with region:
            inside = torch.mm(x, x)
        return [inside, torch.mm(x, x)]

    assert [one.dtype for one in torch.compile(uses, backend="aot_eager")(X)] == [BF16, FP32]


@pytest.mark.usefixtures("compiled_anew")
def test_a_decorated_function_is_compiled_and_called_from_compiled_code() -> None:
    @hmp.autocast("cpu")
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, x)

    assert torch.compile(decorated, backend="eager")(X).dtype is BF16
    both = torch.compile(lambda x: (decorated(x), torch.mm(x, x)), backend="eager", fullgraph=True)(X)
    assert [one.dtype for one in both] == [BF16, FP32]


@pytest.mark.usefixtures("compiled_anew")
def test_a_region_in_compiled_code_applies_inside_of_a_wrapped_function() -> None:
    def inner(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with hmp.autocast("cpu"):
            inside = torch.mm(x, x)
        return inside, torch.mm(x, x)

    wrapped = hmp.op_wrap(torch.compile(inner, backend="eager", fullgraph=True), to="fp32")
    with hmp.autocast("cpu", FP16):
        assert [one.dtype for one in wrapped(X)] == [BF16, FP32]


@pytest.mark.usefixtures("compiled_anew", "one_thread")
@pytest.mark.parametrize("inside", [True, False], ids=["region inside", "region outside"])
def test_a_compiled_training_step_is_close_to_the_eager_one(inside: bool) -> None:
    def forward(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with hmp.autocast("cpu"):
            return net(x)

    eager, net = small_network(), small_network()
    expected = trained(lambda x: forward(eager, x), eager.parameters())
    if inside:
        compiled = torch.compile(forward, backend="aot_eager", fullgraph=True)
        found = trained(lambda x: compiled(net, x), net.parameters())
    else:
        whole = torch.compile(net, backend="aot_eager", fullgraph=True)
        with hmp.autocast("cpu"):
            found = trained(whole, net.parameters())
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other, rtol=3e-2, atol=3e-3)
