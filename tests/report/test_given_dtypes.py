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
NAMES = {BF16: "bf16", FP32: "fp32", torch.float64: "float64", torch.int64: "int64", float: "float64", int: "int64"}

pytestmark = pytest.mark.usefixtures("counted")


def rows() -> list[Row]:
    return list(hmp.report(show=False))


def runs(call: Callable[[], Any]) -> bool:
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
    found = ((op, operation_of(op) or "", call) for op in entries() for call in calls_of(op, 1) if call.tensors())
    samples = [
        (op, name, call)
        for op, name, call in found
        if name and runs(lambda op=op, call=call: op.op(*call.arguments, **{**call.keywords, "dtype": FP32}))
    ]
    if lists == "recommended":
        hmp.convert(preset="recommended", within="everywhere", report=detail)
    else:
        named = {name for _, name, _ in samples if ops.computes(name)}
        converted(bf16=["linear", *(named if lists == "lower" else ())], fp32=["erfinv"], report=detail)
    seen = set()
    for op, name, call in samples:
        for dtype in (BF16, FP32):
            lowered = call.mapped(lambda tensor, _, dtype=dtype: tensor.detach().to(dtype))
            for wanted in (FP32, BF16, torch.float64, None):
                hmp.reset_report()
                keywords = {**lowered.keywords, "dtype": wanted}
                if not runs(lambda op=op, one=lowered, keywords=keywords: op.op(*one.arguments, **keywords)):
                    continue
                if wanted is None:
                    assert not any(row.reason in ("explicit_dtype", "given_dtype") for row in rows()), name_of(op)
                else:
                    precisions = {row.precision for row in rows() if row.operation.strip("_") == name.strip("_")}
                    assert precisions <= {NAMES[wanted]}, (name_of(op), dtype, wanted, rows())
                    seen.update([name] if precisions else [])
    assert "linalg_norm" in seen
    if lists == "lower" or detail == "lines":
        assert {"softmax", "log_softmax", "sum", "mean", "prod", "cumsum", "cumprod"} <= seen


GIVEN = [
    lambda x, dtype: torch.softmax(x, -1, dtype),
    lambda x, dtype: x.log_softmax(-1, dtype),
    lambda x, dtype: F.softmax(x, -1, dtype=dtype),
    lambda x, dtype: torch.norm(x, 2, None, False, None, dtype),
    lambda x, dtype: torch.sum(x, dtype=dtype),
    lambda x, dtype: x.cumsum(0, dtype=dtype),
]


@each("call", GIVEN)
@each("bf16", [["linear"], ["linear", "softmax", "log_softmax", "sum", "cumsum", "linalg_vector_norm"]])
@each("around", ["nothing", "disable_casts", "autocast off"])
def test_the_dtype_may_be_positional_and_counts_where_casts_are_off_too(
    call: Callable[[torch.Tensor, Any], torch.Tensor], bf16: list[str], around: str, converted: Any
) -> None:
    converted(bf16=bf16, report="modules")
    for dtype in (FP32, torch.float64):
        hmp.reset_report()
        if around == "nothing":
            result = call(X.bfloat16(), dtype)
        elif around == "disable_casts":
            with hmp.disable_casts():
                result = call(X.bfloat16(), dtype)
        else:
            with torch.autocast("cpu", enabled=False):
                result = call(X.bfloat16(), dtype)
        assert result.dtype is dtype
        assert {row.precision for row in rows()} <= {NAMES[dtype]}, rows()
        assert rows() or around != "nothing"


@each("given", [float, int, torch.int64])
def test_pythons_types_stand_for_dtypes(given: Any) -> None:
    hmp.convert(report="lines")
    torch.sum(X.bfloat16(), dtype=given)
    (row,) = rows()
    assert (row.precision, row.casts) == (NAMES[given], 0)


def test_what_is_cast_stays_as_it_was(converted: Any) -> None:
    converted(bf16=["sum"], fp32=["softmax"])
    for _ in range(2):
        assert torch.sum(X.bfloat16(), dtype=FP32).dtype is FP32
        assert torch.softmax(X, 0, dtype=BF16).dtype is BF16
        assert torch.sum(X).dtype is BF16
    found = {(row.operation, row.precision, row.reason): (row.calls, row.casts) for row in rows()}
    assert found == {
        ("sum", "fp32", "explicit_dtype"): (2, 0),
        ("sum", "bf16", "list"): (2, 2),
        ("softmax", "bf16", "explicit_dtype"): (2, 0),
    }


def test_a_comparison_says_what_a_dtype_changed() -> None:
    class Attention(torch.nn.Module):
        def __init__(self, dtype: torch.dtype | None) -> None:
            super().__init__()
            self.project, self.dtype = torch.nn.Linear(8, 8), dtype

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.softmax(self.project(x), -1, dtype=self.dtype)

    reports = []
    for dtype in (FP32, None):
        hmp.convert(preset="recommended", report="modules")
        Attention(dtype)(X)
        reports.append(hmp.report(show=False).to_dict())
        hmp.reset_report()
    (pair,) = hmp.compare(*reports).changed("precision")
    assert (pair.a["operation"], pair.a["precision"], pair.b["precision"]) == ("softmax", "fp32", "bf16")


def test_records_and_the_log_have_the_dtype(tmp_path: Path) -> None:
    hmp.convert(log=tmp_path / "log.jsonl", bf16_file_path=None)
    with hmp.record(tmp_path / "record"):
        torch.mean(X.bfloat16(), dtype=FP32)
        F.softmax(X.bfloat16(), -1, dtype=torch.float64)
        with hmp.disable_casts():
            torch.sum(X.bfloat16(), dtype=FP32)
    hmp.restore()
    entries = [
        json.loads(line)
        for path in (tmp_path / "record").rglob("*.jsonl")
        for line in path.read_text("utf-8").splitlines()
    ]
    found = {one["operation"]: one["precision"] for one in entries if "operation" in one}
    assert found == {"mean": "fp32", "softmax": "float64", "sum": "fp32"}
    logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text("utf-8").splitlines()]
    assert ("softmax", "float64") in {(one.get("operation"), one.get("precision")) for one in logged}


def test_a_page_and_a_table_show_any_dtype(tmp_path: Path) -> None:
    hmp.convert(report="lines")
    torch.mm(X, X.t())
    torch.sum(X, dtype=torch.int32)
    torch.sum(X.bfloat16(), dtype=torch.float64)
    report = hmp.report(show=False)
    report.to_html(tmp_path / "report.html")
    assert "float64: 1 call" in report.words[0]
    assert "float64" in str(report)
