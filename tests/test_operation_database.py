"""Every operation of torch's own database: mixed inputs by the rules, float32 inputs under the default lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import Converter
from operation_database import (
    SEVERAL_INPUTS,
    Call,
    cast_by_hand,
    floating_results,
    mixtures,
    name_of,
    operation_of,
)

from habana_mp import hmp


def assert_same(result: Any, expected: Any) -> None:
    mine, theirs = floating_results(result), floating_results(expected)
    assert [one.dtype for one in mine] == [one.dtype for one in theirs]
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, check_stride=False)


def runs(call: Call, function: Any) -> bool:
    """Does plain torch take the call?"""
    try:
        call.copied().run(function)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("op", SEVERAL_INPUTS, ids=name_of)
def test_mixed_inputs_run_as_cast_by_hand(converted: Converter, op: Any) -> None:
    operation = operation_of(op)
    calls = [mixed for plain, mixed in mixtures(op, limit=8) if runs(plain, op.op)]
    assert calls
    by_hand = [] if operation is None else [cast_by_hand(op, mixed).copied().run(op.op) for mixed in calls]
    converted()
    results = [mixed.copied().run(op.op) for mixed in calls]
    hmp.restore()
    for result, expected in zip(results, by_hand or results, strict=True):
        assert_same(result, expected)
