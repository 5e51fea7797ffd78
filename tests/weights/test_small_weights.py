"""Small weights that are trained: torch casts them within the call, and the cast is not cached."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from habana_mp import Report, hmp
from habana_mp.patches.torch.weight_cache import LEAST_TRACKED
from helpers import processor
from helpers.lists import Converter
from helpers.models import Calls
from helpers.watching import assert_rows_sum_up

WIDTH = 128
assert WIDTH * WIDTH == LEAST_TRACKED


@pytest.fixture(autouse=True)
def cache_small_weights() -> None:
    """Here they are not cached."""


def casts_of(report: Report) -> tuple[int, int]:
    """(all casts, those that no cache saves) of linear."""
    rows = [row for row in report.rows if row.operation == "linear"]
    return sum(row.casts for row in rows), sum(row.needed for row in rows)


@settings(max_examples=50)
@given(st.integers(1, 2 * WIDTH), st.integers(1, 2 * WIDTH), st.integers(1, 40), st.booleans())
def test_around_the_limit_a_step_has_the_bits_of_casting_by_hand(inner: int, outer: int, rows: int, bias: bool) -> None:
    layer = torch.nn.Linear(inner, outer, bias=bias)

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        return F.linear(*(None if one is None else one.bfloat16() for one in (x, layer.weight, layer.bias)))

    torch.manual_seed(0)
    x = torch.randn(rows, inner, requires_grad=True)
    given = torch.randn(rows, outer).bfloat16()
    wanted = x, *layer.parameters()

    def step(call: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        result = call(x)
        return [result, *torch.autograd.grad(result, wanted, given)]

    hmp.convert()
    try:
        with processor.by_hand():
            expected = step(by_hand)
        for _ in range(3):  # a cached cast would be found from the second on
            made = step(layer)
            assert [one.dtype for one in made] == [torch.bfloat16] + [torch.float32] * len(wanted)
            assert all(map(torch.equal, made, expected))
    finally:
        hmp.restore()


def test_a_step_after_the_optimizer_reads_the_new_weight(converted: Converter) -> None:
    converted(bf16=["linear"])
    layer = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    x = torch.randn(4, 16)
    for _ in range(3):
        result = layer(x)
        assert torch.equal(result, F.linear(x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16()))
        result.float().sum().backward()
        with hmp.disable_casts():
            optimizer.step()


@pytest.mark.parametrize("watch", [False, True])
def test_the_report_counts_their_casts_and_finds_nothing_odd_in_them(
    converted: Converter, counted: None, watch: bool
) -> None:
    converted(bf16=["linear"])
    small, large = torch.nn.Linear(16, 16), torch.nn.Linear(WIDTH, WIDTH, bias=False)
    with hmp.watch() if watch else nullcontext():
        for _ in range(4):
            small(torch.randn(4, 16))
            large(torch.randn(4, WIDTH))
    report = hmp.report(show=False)
    # the inputs, the large weight once; weight and bias
    assert casts_of(report) == (4 * 4 + 1, 2 * 4 + 1)
    assert report.weights.weights == 1
    assert "changing weight" not in {finding.kind for finding in report.findings}
    if watch:
        assert_rows_sum_up(report)


def test_without_cached_casts_no_weight_is_too_small(converted: Converter, counted: None) -> None:
    converted(bf16=["linear"], weight_cache=False)
    layer = torch.nn.Linear(WIDTH, WIDTH)
    for _ in range(4):
        layer(torch.randn(4, WIDTH))
    assert casts_of(hmp.report(show=False)) == (4 * 3, 0)


def test_of_a_frozen_layer_and_without_gradients_small_weights_are_cached(converted: Converter, counted: None) -> None:
    converted(bf16=["linear"])
    layer, x = torch.nn.Linear(16, 16).requires_grad_(False), torch.randn(4, 16, requires_grad=True)
    for _ in range(4):
        layer(x)
    assert casts_of(hmp.report(show=False)) == (4 + 2, 2)
    hmp.reset_report()
    layer.requires_grad_(True)
    with torch.no_grad():
        for _ in range(4):
            layer(x)
    assert casts_of(hmp.report(show=False))[1] == 0


# ---- the finding about weights that change --------------------------------------------------------------------------

DETAILS = ["operations", "modules", "lines"]


def kinds_after(detail: Any, step: Callable[[], Any], steps: int) -> set[str]:
    hmp.convert(preset="recommended", report=detail)
    hmp.reset_report()
    for _ in range(steps):
        step()
    return {one.kind for one in hmp.report(show=False).findings}


@pytest.mark.parametrize("detail", DETAILS)
def test_layers_that_ran_once_each_cast_no_weight_again(detail: Any) -> None:
    layers = torch.nn.Sequential(*(torch.nn.Conv1d(24, 24, 9, padding=4) for _ in range(12)))
    kernels = [torch.nn.Parameter(torch.randn(24, 24, 9)) for _ in range(12)]

    def evaluated() -> None:
        with torch.no_grad():
            layers(torch.randn(2, 24, 64))

    def many_at_one_line() -> None:
        model = Calls(lambda x: [F.conv1d(x, kernel) for kernel in kernels])
        with torch.no_grad():
            model(torch.randn(2, 24, 64))

    assert not {"changing weight", "too small"} & kinds_after(detail, evaluated, 1)
    assert not {"changing weight", "too small"} & kinds_after(detail, many_at_one_line, 1)


@pytest.mark.parametrize("detail", DETAILS)
def test_a_step_of_an_optimizer_makes_the_casts_needed_that_follow_it(detail: Any) -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        layers(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()

    assert "changing weight" not in kinds_after(detail, step, 4)


@pytest.mark.parametrize("detail", DETAILS)
def test_a_weight_that_code_writes_before_each_call_is_found(detail: Any) -> None:
    layer = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def step() -> None:
        with torch.no_grad():
            layer.weight.mul_(0.99)
            layer(torch.randn(4, WIDTH))

    assert "changing weight" in kinds_after(detail, step, 20)
