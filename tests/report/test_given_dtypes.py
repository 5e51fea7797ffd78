"""A call that is given a dtype is in that precision in reports, records, the log and comparisons."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import Row, hmp, ops
from helpers.each import each
from helpers.operation_database import calls_of, entries, name_of, operation_of

BF16, FP32 = torch.bfloat16, torch.float32
X = torch.linspace(0.5, 2, 32).reshape(4, 8)
NAMES = {BF16: "bf16", torch.float16: "fp16", FP32: "fp32", torch.float64: "float64", torch.int64: "int64"}
#: Empty lists for the whole process: no list names an operation.
UNLISTED = {"bf16": ["linear"], "fp32": ["erfinv"]}

pytestmark = pytest.mark.usefixtures("counted")


def rows() -> list[Row]:
    return list(hmp.report(show=False))


def takes_dtype(call: Callable[[], Any]) -> bool:
    try:
        call()
    except (TypeError, RuntimeError, ValueError):  # it has no such argument, or no kernel
        return False
    return True


@each("detail", ["operations", "lines"])
@each("lists", ["unlisted", "lower", "recommended"])
def test_each_operation_of_torch_is_in_the_precision_of_the_dtype_that_it_is_given(
    detail: str, lists: str, converted: Any
) -> None:
    seen = set()
    given = [(op, operation_of(op) or "") for op in entries()]
    samples = [(op, name, call) for op, name in given if ops.computes(name) for call in list(calls_of(op, 1))]
    named = sorted(
        {
            name
            for op, name, call in samples
            if name and takes_dtype(lambda op=op, call=call: op.op(*call.arguments, **{**call.keywords, "dtype": FP32}))
        }
    )
    assert len(named) > 20
    if lists == "recommended":
        hmp.convert(preset="recommended", within="everywhere", report=detail)
    else:
        converted(**(UNLISTED if lists == "unlisted" else {"bf16": [*named, "linear"]}), report=detail)
    for op, name, call in samples:
        if name not in named:
            continue
        for dtype in (BF16, FP32):
            lowered = call.mapped(lambda tensor, _, dtype=dtype: tensor.detach().to(dtype))
            for wanted in (FP32, BF16, torch.float64, None):
                hmp.reset_report()
                keywords = {**lowered.keywords, "dtype": wanted}
                if not takes_dtype(lambda op=op, one=lowered, keywords=keywords: op.op(*one.arguments, **keywords)):
                    continue
                found = {row.precision for row in rows() if row.operation.strip("_") == name.strip("_")}
                if wanted is None:
                    assert not any(row.reason == "explicit_dtype" for row in rows()), name_of(op)
                else:
                    assert found <= {NAMES[wanted]}, (name_of(op), dtype, wanted, rows())
                    seen.update([name] if found else [])
    assert len(seen) > (10 if lists == "recommended" and detail == "operations" else 20), seen
