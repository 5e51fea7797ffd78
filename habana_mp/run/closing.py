"""The end of a run: its report as a file, and as one line."""

from __future__ import annotations

from collections.abc import Iterable

from habana_mp.reporting.records import PRECISIONS, Row
from habana_mp.reporting.report import Report

#: The file formats of a report, by the ending of the file's name.
ENDINGS = (".html", ".json")


def write(report: Report, path: str) -> None:
    """Writes the report in the format that the ending of the path names."""
    if path.endswith(".json"):
        report.to_json(path)
    else:
        report.to_html(path)


def ran_lower(report: Report) -> bool:
    """True if anything ran in a lower precision."""
    return any(row.calls for row in report if row.is_lower)


def line(report: Report, *, by_script: bool) -> str:
    """Returns one line: the calls by precision, the share of the time in a lower precision, and the largest cost.
    ``by_script``: the script converts by itself, if it wants to."""
    calls: dict[str, int] = {}
    for row in report.main_rows:
        calls[row.precision] = calls.get(row.precision, 0) + row.calls
    if not calls:
        if report.configuration is not None:
            if report.configuration.get("opt_level") == "O0":
                return 'opt_level="O0" casts nothing'
            return "no covered operation was called"
        return "the script asked for no mixed precision" if by_script else "`hmp.convert` was not called"
    parts = ["calls: " + ", ".join(f"{calls[one]:,} {_in(one)}" for one in PRECISIONS if one in calls)]
    seconds = sum(row.seconds or 0.0 for row in report.main_rows)
    if seconds:
        lower = sum(row.seconds or 0.0 for row in report.main_rows if row.is_lower)
        parts.append(f"{lower / seconds:.0%} of their time in lower precision")
    costs = _costs(report, "seconds" if seconds else "bytes")
    if costs:
        (name, precision), cost = max(costs.items(), key=lambda item: item[1])
        amount = f"{cost:.3g} s" if seconds else f"{_size(cost)} of casts"
        parts.append(f"`{name}` {_in(precision)} cost most, {amount}")
    return "; ".join(parts)


def _costs(rows: Iterable[Row], name: str) -> dict[tuple[str, str], float]:
    costs: dict[tuple[str, str], float] = {}
    for row in rows:
        if getattr(row, name):
            key = row.operation, row.precision
            costs[key] = costs.get(key, 0) + getattr(row, name)
    return costs


def _size(count: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"


def _in(precision: str) -> str:
    return precision if precision == "unchanged" else f"in {precision}"
