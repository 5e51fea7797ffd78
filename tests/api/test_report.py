"""The report: what is counted, and how it is printed."""

from __future__ import annotations

import io

import pytest
import torch

from habana_mp import Report, Row, hmp
from helpers.lists import Converter
from helpers.probes import M, N, rows_of_report
from helpers.processes import in_threads

pytestmark = pytest.mark.usefixtures("counted")


def test_calls_casts_and_bytes_are_counted(converted: Converter) -> None:
    converted(bf16=["mm"], fp32=["exp"])
    for _ in range(3):
        torch.mm(M, N)
    torch.mm(M.bfloat16(), N)
    torch.mm(M.bfloat16(), N.bfloat16())
    torch.exp(M.bfloat16())
    torch.exp(M)
    assert rows_of_report() == {("mm", "bf16"): (5, 7, 7 * 32), ("exp", "fp32"): (2, 1, 64)}


def test_without_torch_distributed_the_report_of_all_ranks_is_that_of_this_process() -> None:
    hmp.convert()
    torch.mm(M, N)
    assert hmp.report(show=False, ranks=True) == hmp.report(show=False)


def test_a_function_its_method_and_its_operator_are_one_operation(converted: Converter) -> None:
    converted(bf16=["mul"])
    torch.mul(M, N)
    M.mul(N)
    _ = M * N
    assert rows_of_report() == {("mul", "bf16"): (3, 6, 6 * 32)}


def test_calls_that_were_left_alone_are_counted_as_such(converted: Converter) -> None:
    converted(bf16=["mm"])
    torch.mm(M, N, out=torch.empty(4, 4))
    torch.mm(M.double(), N.double())
    assert rows_of_report() == {("mm", "unchanged"): (2, 0, 0)}


def test_nothing_is_counted_where_casts_are_off_or_nothing_is_converted(converted: Converter) -> None:
    torch.mm(M, N)
    converted(bf16=["mm"])
    with hmp.disable_casts():
        torch.mm(M, N)
    hmp.restore()
    torch.mm(M, N)
    assert rows_of_report() == {}


def test_calls_that_torch_autocast_protects_are_counted_as_left_alone(converted: Converter) -> None:
    converted(bf16=["mm"])
    with torch.autocast("cpu", enabled=False):
        torch.mm(M, N)
        with pytest.raises(RuntimeError):
            torch.mm(M, N[:2])
    (row,) = hmp.report(show=False)
    assert (row.operation, row.precision, row.reason, row.calls, row.casts) == ("mm", "unchanged", "autocast_off", 2, 0)
    assert (row.why, row.rule) == ("inside of torch.autocast(enabled=False)", "rule 10")


def test_each_reason_has_a_row_and_the_rule_that_it_is_by(converted: Converter) -> None:
    converted(bf16=["mm"], fp32=["exp"])
    torch.mm(M, N)
    torch.mm(M, N, out=torch.empty(4, 4))
    torch.exp(M.bfloat16())
    torch.add(M.bfloat16(), M)
    found = {(row.operation, row.reason): (row.precision, row.rule) for row in hmp.report(show=False)}
    assert found[("mm", "explicit_out")] == ("unchanged", "rule 6")
    assert found[("add", "widest")] == ("fp32", "rule 2")
    (lower, where), (upper, elsewhere) = found[("mm", "list")], found[("exp", "list")]
    assert (lower, upper) == ("bf16", "fp32")
    assert [str(one).rpartition("_")[2] for one in (where, elsewhere)] == ["bf16.txt:1", "fp32.txt:1"]


def test_the_report_outlives_restore_and_adds_up_over_configurations(converted: Converter) -> None:
    converted(bf16=["mm"])
    torch.mm(M, N)
    hmp.restore()
    assert rows_of_report() == {("mm", "bf16"): (1, 2, 64)}
    converted(bf16=["mm"])
    torch.mm(M, N)
    assert rows_of_report() == {("mm", "bf16"): (2, 4, 128)}


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
    listed = Row("mm", "bf16", 1234, 2468, 1_500_000, "list", "mine.txt:3")
    report = Report((listed, Row("softmax", "fp32", 10, 0, 0, "widest", "rule 2")))
    *words, lines = str(report).split("\n\n")
    assert words == ["\n".join(report.words)]
    *table, below = lines.splitlines()
    header, _, first, second, _, total = table
    assert below == "docs/rules.md explains the reasons"  # a row has rule 2
    assert header.split() == ["operation", "precision", "why", "calls", "casts", "MB", "cast"]
    assert first.split() == ["mm", "bf16", "listed,", "mine.txt:3", "1234", "2468", "1.500"]
    assert second.split() == ["softmax", "fp32", "widest", "input", "10", "0", "0.000"]
    assert total.split() == ["total", "1244", "2468", "1.500"]
    assert len({len(line) for line in table}) == 1


def test_in_a_narrow_terminal_a_listed_operation_is_called_listed_without_the_file() -> None:
    rows = [
        Row("mm", "bf16", 9, 9, 9, "list", "a_long_name_of_a_list.txt:33"),
        Row("exp", "fp32", 9, 9, 9, "no_kernel"),
    ]
    wide, narrow = (Report(tuple(rows))._text(columns).splitlines() for columns in (120, 60))
    assert any("listed, a_long_name_of_a_list.txt:33" in line for line in wide)
    assert any(line.split()[:4] == ["mm", "bf16", "listed", "9"] for line in narrow)
    assert not any("…" in line and "mm" in line for line in narrow)


def test_where_only_lines_of_lists_decide_no_page_of_rules_is_named() -> None:
    assert "docs/rules.md" not in str(Report((Row("mm", "bf16", 1, 2, 3, "list", "mine.txt:3"),)))


def test_calls_of_many_threads_are_all_counted(converted: Converter) -> None:
    converted(bf16=["exp"])
    in_threads(lambda _: [torch.exp(M) for _ in range(200)])
    assert rows_of_report() == {("exp", "bf16"): (800, 800, 800 * 32)}


def test_a_file_that_is_no_stream_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`file` must be a stream .*; got str: 'report\.txt'"):
        hmp.report(file="report.txt")  # type: ignore[arg-type]  # that is the point
