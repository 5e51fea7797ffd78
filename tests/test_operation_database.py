"""Every operation of torch's own database: mixed inputs by the rules, float32 inputs under the default lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import Converter
from operation_database import (
    BF16,
    FP32,
    SEVERAL_INPUTS,
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


def raises(call: Any, function: Any) -> Exception | None:
    try:
        call.copied().run(function)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("op", SEVERAL_INPUTS, ids=name_of)
def test_mixed_inputs_run_as_cast_by_hand(converted: Converter, op: Any) -> None:
    operation = operation_of(op)
    for plain, mixed in mixtures(op, limit=8):
        if raises(plain, op.op):
            continue
        expected = None if operation is None else cast_by_hand(mixed, operation).copied().run(op.op)
        converted()
        result = mixed.copied().run(op.op)
        hmp.restore()
        if operation is not None:
            assert_same(result, expected)
