"""`skip_slower`: what is faster as it is written stays so, where nothing is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import _core, hmp
from helpers.accelerators import needs_accelerator

pytestmark = [pytest.mark.processor, needs_accelerator("slower")]


@pytest.fixture(autouse=True)
def measured_again() -> Iterator[None]:
    yield
    _core.assume_that_lowering_pays(-1)


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(32, 16)


X = torch.linspace(-1.0, 1.0, 4 * 32).reshape(4, 32)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_slower_shape_is_left_as_it_is_written(mode: type[torch.no_grad], tmp_path: Path) -> None:
    linear, kernel, matrix = layer(), torch.randn(2, 1, 3, 3), torch.randn(32, 8)
    expected = F.linear(X, linear.weight, linear.bias)
    _core.assume_that_lowering_pays(0)
    hmp.convert(skip_slower=True, log=tmp_path / "log.jsonl")
    with mode():
        assert torch.equal(linear(X), expected)
        assert F.conv2d(X[None, None], kernel).dtype is torch.float32
        assert (X @ matrix).dtype is torch.float32
    hmp.restore()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    decided = {
        (line["operation"], line["precision"], line["reason"]) for line in lines if line.get("reason") == "slower"
    }
    assert {operation for operation, _, _ in decided} >= {"linear", "conv2d"}
    assert {precision for _, precision, _ in decided} == {"unchanged"}


def test_without_the_option_nothing_is_skipped() -> None:
    _core.assume_that_lowering_pays(0)
    hmp.convert()
    with torch.no_grad():
        assert layer()(X).dtype is torch.bfloat16


def test_what_is_recorded_is_never_skipped() -> None:
    linear = layer()
    _core.assume_that_lowering_pays(0)
    hmp.convert(skip_slower=True)
    assert linear(X).dtype is torch.bfloat16


def test_other_operations_and_lower_inputs_are_not_skipped() -> None:
    linear = layer()
    _core.assume_that_lowering_pays(0)
    hmp.convert(skip_slower=True)
    with torch.no_grad():
        assert linear(X.bfloat16()).dtype is torch.bfloat16
        assert F.softmax(X.bfloat16(), -1).dtype is torch.float32


def test_a_shape_is_measured_once_and_keeps_its_verdict() -> None:
    linear = layer()
    hmp.convert(skip_slower=True)
    with torch.no_grad():
        dtypes = [linear(X).dtype for _ in range(30)]
    assert set(dtypes[:8]) == {torch.bfloat16}
    assert len(set(dtypes[9:])) == 1


def test_a_measurement_counts_and_logs_nothing() -> None:
    linear = layer()
    hmp.convert(skip_slower=True)
    hmp.reset_report()
    with torch.no_grad():
        for _ in range(12):
            linear(X)
    assert sum(row.calls for row in hmp.report(show=False).rows) == 12


def test_what_is_wrong_raises_as_ever() -> None:
    linear = layer()
    hmp.convert(skip_slower=True)
    with torch.no_grad():
        for _ in range(20):
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                linear(X[:, :5])
