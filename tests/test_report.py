"""The report, and op_wrap."""

from __future__ import annotations

import functools
import gc
import io
import json
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import Converter

from habana_mp import Report, Row, _core, hmp

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
M = torch.linspace(0.1, 0.9, 16).reshape(4, 4)
N = M.t().contiguous()

pytestmark = pytest.mark.usefixtures("counted")


def rows() -> dict[tuple[str, str], tuple[int, int, int]]:
    return {(row.operation, row.precision): (row.calls, row.casts, row.bytes) for row in hmp.report(show=False)}


# ---- the report ----------------------------------------------------------------------------------------------------


def test_calls_casts_and_bytes_are_counted(converted: Converter) -> None:
    converted(bf16=["mm"], fp32=["exp"])
    for _ in range(3):
        torch.mm(M, N)
    torch.mm(M.bfloat16(), N)
    torch.mm(M.bfloat16(), N.bfloat16())
    torch.exp(M.bfloat16())
    torch.exp(M)
    assert rows() == {("mm", "bf16"): (5, 7, 7 * 32), ("exp", "fp32"): (2, 1, 64)}


def test_a_function_its_method_and_its_operator_are_one_operation(converted: Converter) -> None:
    converted(bf16=["mul"])
    torch.mul(M, N)
    M.mul(N)
    _ = M * N
    assert rows() == {("mul", "bf16"): (3, 6, 6 * 32)}


def test_an_in_place_operation_is_one_of_its_own(converted: Converter) -> None:
    converted()
    M.clone().mul_(N.bfloat16())
    assert rows() == {("mul_", "fp32"): (1, 1, 64)}


def test_calls_that_were_left_alone_are_counted_as_such(converted: Converter) -> None:
    converted(bf16=["mm"])
    torch.mm(M, N, out=torch.empty(4, 4))
    torch.mm(M.double(), N.double())
    assert rows() == {("mm", "unchanged"): (2, 0, 0)}


def test_nothing_is_counted_where_casts_are_off_or_nothing_is_converted(converted: Converter) -> None:
    torch.mm(M, N)
    converted(bf16=["mm"])
    with hmp.disable_casts():
        torch.mm(M, N)
    with torch.autocast("cpu", enabled=False):
        torch.mm(M, N)
    hmp.restore()
    torch.mm(M, N)
    assert rows() == {}


def test_a_call_that_raises_is_not_counted(converted: Converter) -> None:
    converted(bf16=["mm"])
    with pytest.raises(RuntimeError):
        torch.mm(M, N[:2])
    assert rows() == {}


def test_the_report_outlives_restore_and_adds_up_over_configurations(converted: Converter) -> None:
    converted(bf16=["mm"])
    torch.mm(M, N)
    hmp.restore()
    assert rows() == {("mm", "bf16"): (1, 2, 64)}
    converted(bf16=["mm"])
    torch.mm(M, N)
    assert rows() == {("mm", "bf16"): (2, 4, 128)}


def test_resetting_counts_from_zero(converted: Converter) -> None:
    converted(bf16=["mm", "normalize"])
    torch.mm(M, N)
    F.normalize(M)
    hmp.reset_report()
    assert len(hmp.report(show=False)) == 0
    torch.mm(M, N)
    assert rows()[("mm", "bf16")][0] == 1


def test_the_busiest_operation_comes_first(converted: Converter) -> None:
    converted(bf16=["mm", "exp", "sin"])
    for count, function in ((2, torch.sin), (5, torch.exp)):
        for _ in range(count):
            function(M)
    torch.mm(M, N)
    assert [row.operation for row in hmp.report(show=False)] == ["exp", "sin", "mm"]


def test_printing_goes_to_standard_output_to_a_file_or_nowhere(
    converted: Converter, capsys: pytest.CaptureFixture[str]
) -> None:
    converted(bf16=["mm"])
    torch.mm(M, N)
    shown = hmp.report()
    assert capsys.readouterr().out == f"{shown}\n"
    silent = hmp.report(show=False)
    assert capsys.readouterr().out == ""
    assert silent == shown
    file = io.StringIO()
    hmp.report(file=file)
    assert file.getvalue() == f"{shown}\n"
    assert capsys.readouterr().out == ""


def test_the_table_has_a_line_for_each_row_and_sums() -> None:
    report = Report((Row("mm", "bf16", 1234, 2468, 1_500_000), Row("softmax", "fp32", 10, 0, 0)))
    lines = str(report).splitlines()
    assert lines[0].split() == ["operation", "precision", "calls", "casts", "MB", "cast"]
    assert lines[2].split() == ["mm", "bf16", "1234", "2468", "1.500"]
    assert lines[3].split() == ["softmax", "fp32", "10", "0", "0.000"]
    assert lines[-1].split() == ["total", "1244", "2468", "1.500"]
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 6


def test_an_empty_report_is_a_table_too() -> None:
    lines = str(Report(())).splitlines()
    assert lines[-1].split() == ["total", "0", "0", "0.000"]
    assert list(Report(())) == []


def test_the_rows_are_plain_data_on_demand(converted: Converter) -> None:
    converted(bf16=["mm"])
    torch.mm(M, N)
    report = hmp.report(show=False)
    assert json.loads(json.dumps(report.as_dicts())) == [
        {"operation": "mm", "precision": "bf16", "calls": 1, "casts": 2, "bytes": 64}
    ]
    assert len(report) == 1
    assert sum(row.calls for row in report) == 1


def test_a_report_is_a_snapshot(converted: Converter) -> None:
    converted(bf16=["mm"])
    before = hmp.report(show=False)
    torch.mm(M, N)
    assert len(before) == 0


def test_calls_of_many_threads_are_all_counted(converted: Converter) -> None:
    converted(bf16=["exp"])
    threads = [threading.Thread(target=lambda: [torch.exp(M) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows() == {("exp", "bf16"): (800, 800, 800 * 32)}


# ---- op_wrap -------------------------------------------------------------------------------------------------------


def dtypes(*values: object, **named: object) -> list[object]:
    """What a wrapped function is given."""
    return [value.dtype if isinstance(value, torch.Tensor) else value for value in (*values, *named.values())]


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("bf16", BF16),
        ("fp16", FP16),
        ("fp32", FP32),
        (BF16, BF16),
        (FP16, FP16),
        (FP32, FP32),
        ("widest", FP32),
        ("first", FP16),
    ],
    ids=str,
)
def test_the_tensors_of_a_wrapped_function_come_in_its_precision(to: object, expected: torch.dtype) -> None:
    wrapped = hmp.op_wrap(dtypes, to=to)  # type: ignore[arg-type]
    hmp.convert()
    assert wrapped(M.half(), M, 3, "x", y=M.bfloat16()) == [expected, expected, 3, "x", expected]


def test_bf16_is_what_is_meant_without_a_word() -> None:
    hmp.convert()
    assert hmp.op_wrap(dtypes)(M) == [BF16]


def test_integers_and_doubles_are_left_alone() -> None:
    wrapped = hmp.op_wrap(dtypes)
    hmp.convert()
    assert wrapped(torch.arange(2), M) == [torch.int64, BF16]
    assert wrapped(M.double(), M) == [torch.float64, FP32]


def test_lists_and_tuples_of_tensors_are_cast() -> None:
    hmp.convert()
    inside = hmp.op_wrap(lambda one, two: [dtypes(*one), dtypes(*two), type(one), type(two)])
    assert inside([M, 1], (M, M.long())) == [[BF16, 1], [BF16, torch.int64], list, tuple]


def test_a_function_mode_does_not_stop_the_casts_of_a_wrapped_function() -> None:
    hmp.convert()
    with torch.device("cpu"):
        assert hmp.op_wrap(lambda x: x.dtype, to="bf16")(torch.ones(2)) is torch.bfloat16


def test_a_wrapped_function_is_plain_without_convert_and_where_casts_are_off() -> None:
    wrapped = hmp.op_wrap(dtypes)
    assert wrapped(M) == [FP32]
    hmp.convert("O0")
    assert wrapped(M) == [FP32]
    hmp.convert()
    assert wrapped(M) == [BF16]
    with hmp.disable_casts():
        assert wrapped(M) == [FP32]
    with torch.autocast("cpu", enabled=False):
        assert wrapped(M) == [FP32]
    hmp.restore()
    assert wrapped(M) == [FP32]


def test_it_decorates_with_and_without_arguments_and_keeps_the_face() -> None:
    @hmp.op_wrap
    def one(x: torch.Tensor) -> torch.Tensor:
        """One."""
        return x

    @hmp.op_wrap(to="fp32")
    def two(x: torch.Tensor) -> torch.Tensor:
        return x

    class Holder:
        @hmp.op_wrap
        def method(self, x: torch.Tensor) -> torch.Tensor:
            return x

    hmp.convert()
    assert one(M).dtype is BF16
    assert two(M.bfloat16()).dtype is FP32
    assert Holder().method(M).dtype is BF16
    assert (one.__name__, one.__doc__) == ("one", "One.")


def test_operations_partials_and_objects_can_be_wrapped() -> None:
    hmp.convert()
    assert hmp.op_wrap(torch.exp)(M).dtype is BF16
    assert hmp.op_wrap(torch.Tensor.exp, to="fp32")(M.bfloat16()).dtype is FP32
    assert hmp.op_wrap(functools.partial(torch.sum, dim=0))(M).dtype is BF16
    assert hmp.op_wrap(torch.nn.Softmax(-1).bfloat16(), to="fp32")(M.bfloat16()).dtype is FP32


def test_inside_of_a_wrapped_function_the_lists_are_silent(converted: Converter) -> None:
    converted(bf16=["mm"], fp32=["exp"])
    seen = hmp.op_wrap(lambda x: [torch.mm(x, x).dtype, torch.exp(x).dtype], to="fp32")
    assert seen(M.bfloat16()) == [FP32, FP32]
    lowered = hmp.op_wrap(lambda x: [torch.mm(x, x).dtype, torch.exp(x).dtype], to="bf16")
    assert lowered(M) == [BF16, BF16]
    assert torch.exp(M.bfloat16()).dtype is FP32


def test_inside_of_a_wrapped_function_the_other_rules_hold(converted: Converter) -> None:
    converted(bf16=["mm"])
    mixed = hmp.op_wrap(lambda x: [torch.mm(x, N).dtype, (x + N).dtype, torch.fft.fft(x).dtype], to="bf16")
    assert mixed(M) == [BF16, FP32, torch.complex64]


def test_wrapped_functions_nest(converted: Converter) -> None:
    converted(bf16=["mm"])
    inner = hmp.op_wrap(dtypes, to="fp32")
    outer = hmp.op_wrap(lambda x: [*dtypes(x), *inner(x), torch.mm(x, x).dtype], to="bf16")
    assert outer(M) == [BF16, FP32, BF16]
    assert torch.mm(M, N).dtype is BF16


def test_an_exception_passes_through_once_and_leaves_the_state_right(converted: Converter) -> None:
    called = []

    def failing(x: torch.Tensor) -> None:
        called.append(x.dtype)
        raise KeyError("mine")

    converted(bf16=["mm"])
    with pytest.raises(KeyError, match="mine"):
        hmp.op_wrap(failing)(M)
    assert called == [BF16], "a user's function is not called a second time"
    assert torch.mm(M, N).dtype is BF16


def test_a_wrapped_function_that_fails_in_its_precision_is_not_run_again_in_another(converted: Converter) -> None:
    def picky(x: torch.Tensor) -> str:
        if x.dtype is BF16:
            raise ValueError("not like this")
        return "run again"

    converted(bf16=["mm"])
    with pytest.raises(ValueError, match="not like this"):
        hmp.op_wrap(picky)(M)


@pytest.mark.parametrize("to", ["int8", "bfloat16", "", None, 3, torch.float64, torch.int8])
def test_an_unknown_precision_is_refused_with_the_known(to: object) -> None:
    with pytest.raises(ValueError, match="bf16"):
        hmp.op_wrap(dtypes, to=to)  # type: ignore[call-overload]


@pytest.mark.parametrize("wrong", [3, "mm"])
def test_only_what_can_be_called_can_be_wrapped(wrong: object) -> None:
    with pytest.raises(TypeError, match="op_wrap"):
        hmp.op_wrap(wrong)  # type: ignore[call-overload]


def test_gradients_flow_through_a_wrapped_function() -> None:
    w = M.clone().requires_grad_()
    hmp.convert()
    hmp.op_wrap(lambda x: (x * x).float().sum(), to="bf16")(w).backward()
    assert w.grad is not None
    assert torch.equal(w.grad, (M.bfloat16() * 2).float())


def test_a_wrapped_function_is_in_the_report_under_its_name(converted: Converter) -> None:
    converted(bf16=["mm"])
    hmp.op_wrap(dtypes)(M, M)
    assert rows() == {("dtypes", "bf16"): (1, 2, 64)}


def test_an_object_that_holds_its_wrapped_method_is_collected() -> None:
    class Holder:
        def __init__(self) -> None:
            self.wrapped = hmp.op_wrap(self.method)

        def method(self, x: torch.Tensor) -> torch.dtype:
            return x.dtype

    hmp.convert()
    holder = Holder()
    assert holder.wrapped(M) is BF16
    reference = weakref.ref(holder)
    del holder
    gc.collect()
    assert reference() is None


def test_the_log_tells_what_was_wrapped(tmp_path: Path) -> None:
    hmp.convert(log=tmp_path / "casts.jsonl")
    hmp.op_wrap(dtypes)(M)
    hmp.op_wrap(dtypes, to="widest")(M)
    hmp.restore()
    lines = [json.loads(line) for line in (tmp_path / "casts.jsonl").read_text().splitlines()]
    told = [(one["operation"], one["precision"], one["reason"]) for one in lines if one["kind"] == "operation"]
    assert told == [("dtypes", "bf16", "op_wrap"), ("dtypes", "fp32", "op_wrap")]


def test_what_a_dropped_wrapper_counted_is_kept(converted: Converter) -> None:
    converted(bf16=["mm"])
    for _ in range(50):
        hmp.op_wrap(dtypes)(M)
    assert rows() == {("dtypes", "bf16"): (50, 50, 50 * 32)}


def test_a_file_that_is_no_stream_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`file` must be a stream .*; got str: 'report\.txt'"):
        hmp.report(file="report.txt")  # type: ignore[arg-type]  # that is the point


def test_functions_that_are_freed_while_the_report_is_made_are_counted(converted: Converter) -> None:
    def wrapped(number: int) -> Any:
        def operation(x: torch.Tensor) -> torch.Tensor:
            return x.mm(x)

        operation.__name__ = f"operation_{number}"
        return hmp.op_wrap(operation, to="bf16")

    converted(bf16=["mm"])
    before = gc.isenabled(), gc.get_threshold()
    try:
        for allocations in range(1, 60, 3):
            hmp.reset_report()
            gc.disable()
            for number in range(40):
                one = wrapped(number)
                one(M)
                one.__dict__["itself"] = [one] if number > 10 else None
            del one
            gc.set_threshold(gc.get_count()[0] + allocations, 1000, 1000)
            gc.enable()
            counts = _core.counts()
            gc.disable()
            assert sum(calls for name, _, _, calls, *_ in counts if "operation_" in name) == 40
    finally:
        gc.set_threshold(*before[1])
        (gc.enable if before[0] else gc.disable)()
