"""Exact code is not lowered in compiled code either, and its graph is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.each import each
from helpers.lists import Converter
from helpers.models import Calls
from helpers.own_packages import own_package

BF16, FP32 = torch.bfloat16, torch.float32
FULL, HALF = torch.eye(4), torch.eye(4).bfloat16()
FINE = FULL * (1 + 2**-12)

Import = Callable[[str], Any]

pytestmark = pytest.mark.usefixtures("compiled_anew")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Import]:
    with own_package(tmp_path, "ownpack") as imported:
        yield imported


def compiled(function: Any, backend: str = "eager", **options: Any) -> Any:
    return torch.compile(function, backend=backend, **{"fullgraph": True, **options})


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return product(x, x), x @ x


def dtypes(results: Any) -> list[torch.dtype]:
    return [one.dtype for one in results]


@each("by", ["package", "module", "function"])
def test_its_own_code_is_not_lowered_and_what_it_calls_is(own: Import, by: str) -> None:
    arithmetic = own("arithmetic")
    given: dict[str, Any] = {"package": "ownpack", "module": arithmetic, "function": arithmetic.all_of_them}
    layer = nn.Linear(4, 4)

    def around(x: torch.Tensor) -> Any:
        return (*arithmetic.all_of_them(layer, x), x @ x)

    hmp.convert(exact=[given[by]])
    expected = around(FINE)
    assert dtypes(expected) == [FP32, BF16, BF16, FP32, FP32, BF16]
    found = compiled(around, "aot_eager")(FINE)
    assert dtypes(found) == dtypes(expected)
    assert_same(found[0], expected[0])
    assert_same(found[4], expected[4])
    assert dtypes(compiled(arithmetic.all_of_them, "aot_eager")(layer, FINE)) == dtypes(expected)[:5]


def test_the_float32_list_and_rules_2_to_4_hold(converted: Converter) -> None:
    def mixed(full: torch.Tensor, half: torch.Tensor) -> list[torch.Tensor]:
        total = full.clone()
        total += half
        return [
            torch.softmax(half, -1),
            half + full,
            half @ full,
            full @ half,
            total,
            torch.cat([half, full]),
            F.linear(full, half),
            half.masked_fill(full > 0, torch.finfo(FP32).min),
            torch.relu(full),
            F.gelu(full),
        ]

    lowered = ["matmul", "add", "linear", "cat", "relu", "masked_fill", "gelu"]
    converted(bf16=lowered, fp32=["softmax"], exact=[mixed])
    expected = mixed(FULL, HALF)
    assert dtypes(expected) == [FP32, FP32, BF16, FP32, FP32, FP32, FP32, BF16, FP32, FP32]
    assert dtypes(compiled(mixed, "aot_eager")(FULL, HALF)) == dtypes(expected)


def test_generators_and_code_of_torch_that_computes_for_its_caller(own: Import) -> None:
    arithmetic = own("arithmetic")
    hmp.convert(exact=["ownpack"])
    assert compiled(arithmetic.by_generator)(FULL, FULL).dtype is FP32
    assert arithmetic.through_torch(FULL).dtype is compiled(arithmetic.through_torch)(FULL).dtype is FP32


def test_only_what_a_list_would_lower_gets_a_region(own: Import) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    def exact(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.t().reshape(16) + 1, 0)

    hmp.convert(preset="recommended", exact=[exact])
    torch.compile(exact, backend=backend)(FULL)
    assert not [one for one in graphs[0].graph.nodes if "autocast" in str(one.target)]


def test_it_holds_in_regions_and_modules_with_rules_of_their_own() -> None:
    inner = Calls(both)
    model = Calls(lambda x: inner(x), inner=inner)
    for options in ({"within": "modules"}, {"rules": {"matmul @ inner": "fp16"}}):
        hmp.convert(exact=[product], **options)  # type: ignore[arg-type]  # options of several types
        assert dtypes(compiled(model)(FULL)) == dtypes(model(FULL))
        assert model(FULL)[0].dtype is FP32
    hmp.convert(exact=[product], rules={})
    with hmp.autocast("cpu", torch.float16):
        assert dtypes(compiled(model)(FULL)) == [FP32, torch.float16]


def test_an_exported_program_runs_it_exactly() -> None:
    hmp.convert(exact=[product])
    program = torch.export.export(Calls(both), (FULL,)).module()
    assert dtypes(program(FULL)) == [FP32, BF16]
