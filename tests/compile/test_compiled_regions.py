"""Regions of hmp.autocast under torch.compile and torch.export."""

from __future__ import annotations

import contextlib

import pytest
import torch

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.probes import BF16, FP16, FP32, X
from helpers.processes import run_script


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
            with hmp.autocast("cpu", FP16):
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
    expected = [outside, BF16, FP16, FP32, BF16, FP32, FP32, BF16, FP32, FP16, BF16, outside]
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
