"""Reads places from reports."""

from __future__ import annotations

from pathlib import Path

from habana_mp import Report, _core


def paths(report: Report) -> dict[str | None, set[str]]:
    """Returns the operations that ran in each module, without those that fill new parameters."""
    found: dict[str | None, set[str]] = {}
    for row in report:
        if row.reason not in ("construction", "in_place"):
            found.setdefault(row.module, set()).add(row.operation)
    return found


def marked_line(file: str, mark: str) -> int:
    """Returns the number of the line that ends in a comment with this text."""
    lines = Path(file).read_text("utf-8").splitlines()
    (number,) = [i for i, line in enumerate(lines, start=1) if line.endswith(f"# {mark}")]
    return number


def assert_rows_sum_up(report: Report) -> None:
    """Asserts that each call was recorded, and that the rows add up to the core's counts, by operation and
    precision."""
    counted: dict[tuple[str, str, str], list[int]] = {}
    for name, _, precision, reason, _, *counts in _core.counts():
        plain = name.strip("_") if name.startswith("__") else name
        sums = counted.setdefault((plain, precision, reason), [0, 0, 0, 0])
        for i, count in enumerate(counts):
            sums[i] += count
    found: dict[tuple[str, str, str], list[int]] = {}
    for row in report:
        assert (row.seconds is None) == (row.phase == "traced"), row
        sums = found.setdefault((row.operation, row.precision, row.reason), [0, 0, 0, 0])
        for i, count in enumerate((row.calls, row.casts, row.bytes, row.needed)):
            sums[i] += count
    assert found == counted
