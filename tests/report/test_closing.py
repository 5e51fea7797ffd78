"""The end of a run: its report in a file, and in a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from habana_mp import Report
from habana_mp.run import closing
from helpers.reports import network, report, row

Data = dict[str, Any]

A, B = row("linear", module="Net.a"), row("softmax", "fp32", module="Net.a")


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([], "no covered operation was called"),
        ([A], "calls: 10 in bf16"),
        (
            [{**A, "calls": 1234, "bytes": 2_500_000}, B, row("t", "unchanged", bytes=0)],
            "calls: 1,234 in bf16, 10 in fp32, 10 unchanged",
        ),
        (
            network(1),
            "calls: 20 in bf16, 20 in fp32; 0.04 s in lower precision",
        ),
        ([row("t", "unchanged", bytes=0)], "calls: 10 unchanged"),
    ],
)
def test_a_line_tells_of_a_report(rows: list[Data], line: str) -> None:
    assert closing.line(Report.from_dict(report(rows)), by_script=False) == line


def test_the_ending_of_a_files_name_says_as_what_a_report_is_written(tmp_path: Path) -> None:
    given = Report.from_dict(report(network()))
    for ending in closing.ENDINGS:
        closing.write(given, str(tmp_path / f"a{ending}"))
    assert Report.from_json(tmp_path / "a.json") == given
    assert (tmp_path / "a.html").read_text("utf-8").startswith("<!DOCTYPE html>")
