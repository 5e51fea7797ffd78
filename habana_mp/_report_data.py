"""Reports as data: that of this process, several as one, and what to say of one in a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from habana_mp import _report

#: A report as data, as :meth:`Report.to_dict` has it.
Data = dict[str, Any]

#: Of a row, what adds up.
_COUNTS = ("calls", "casts", "casts_up", "casts_down", "bytes", "hits", "seconds", "cast_seconds")

#: What a report is called in its file.
FORMAT, VERSION = "habana-mp report", 1

#: Precisions that count as lower.
LOWER = ("bf16", "fp16")


def of_now() -> Data:
    """The report of this process so far."""
    return data_of(_report.current())


def data_of(report: Any) -> Data:
    """A report as data."""
    if hasattr(report, "to_dict"):
        data: Data = report.to_dict()
        return data
    return made_of(report.as_dicts(), weights=asdict(report.weights))


def made_of(rows: Iterable[dict[str, Any]], **more: Any) -> Data:
    """A report with these rows."""
    data: Data = {"format": FORMAT, "version": VERSION, "detail": "operations", "seconds": None, "ranks": 1}
    data |= {"environment": {}, "configuration": None, "words": [], "rows": list(rows), "modules": [], "edges": []}
    data |= {"findings": [], "weights": {}, **more}
    data["totals"] = _totals(data["rows"])
    return data


def write(data: Data, path: str) -> None:
    """To a file, whose ending says as what."""
    if path.endswith(".json"):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
    else:
        report: Any = _report.Report
        report.from_dict(data).to_html(path)


def writes(path: str) -> bool:
    """Can a report be written to a file of this name?"""
    return path.endswith(".json") or (path.endswith(".html") and hasattr(_report.Report, "to_html"))


def read(path: str | os.PathLike[str]) -> Data:
    """A report that was written as JSON.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no report.
    """
    with open(path, encoding="utf-8") as file:
        try:
            data = json.load(file)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: this is no JSON: {error}") from None
    check(data, os.fspath(path))
    return data  # type: ignore[no-any-return]  # checked


def check(data: object, source: str) -> None:
    """Raise a ValueError where this is no report."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f'{source}: this is no report; one is an object whose "format" is "{FORMAT}"')
    if data.get("version") != VERSION:
        raise ValueError(f"{source}: a report of version {data.get('version')!r}; this habana_mp reads {VERSION}")
    rows = data.get("rows")
    wanted = ("operation", "precision", "calls")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and all(n in row for n in wanted) for row in rows):
        raise ValueError(f'{source}: "rows" must be a list of objects with {", ".join(wanted)}')


# ---- several as one --------------------------------------------------------------------------------------------------


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((key, value) for key, value in sorted(row.items()) if key not in (*_COUNTS, "order"))


def _sum(values: Iterable[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _totals(rows: Sequence[dict[str, Any]]) -> Data:
    names = ("calls", "casts", "bytes", "hits", "seconds", "cast_seconds")
    precisions = dict.fromkeys(row["precision"] for row in rows)
    by_precision = {
        precision: {name: _sum(row.get(name) for row in rows if row["precision"] == precision) for name in names[::4]}
        for precision in precisions
    }
    return {**{name: _sum(row.get(name) for row in rows) for name in names}, "by_precision": by_precision}


def merged(reports: Sequence[Data], *, ranks: int = 1) -> Data:
    """Several processes' reports as one: what they have in common is added up."""
    if len(reports) == 1 and ranks == 1:
        return reports[0]
    first = reports[0]
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    places: dict[tuple[Any, ...], int] = {}
    edges: dict[tuple[int, int], dict[str, Any]] = {}
    modules: dict[str, dict[str, Any]] = {}
    findings: dict[tuple[Any, ...], dict[str, Any]] = {}
    for report in reports:
        there = []
        for row in report["rows"]:
            key = _identity(row)
            there.append(places.setdefault(key, len(places)))
            _add(rows, key, row, _COUNTS)
        for edge in report.get("edges", ()):
            moved = {**edge, "from": there[edge["from"]], "to": there[edge["to"]]}
            _add(edges, (moved["from"], moved["to"]), moved, ("calls", "casts"))
        for module in report.get("modules", ()):
            _add(modules, module["path"], module, ("calls", "seconds"))
        for finding in report.get("findings", ()):
            moved = {**finding, "rows": [there[row] for row in finding["rows"]]}
            _add(findings, (finding["kind"], *moved["rows"]), moved, ("saves",))
    every = list(rows.values())
    known = [report["seconds"] for report in reports if report.get("seconds") is not None]
    found = {
        **first,
        "seconds": max(known, default=None),  # they ran side by side
        "ranks": ranks,
        "totals": _totals(every),
        "rows": every,
        "modules": list(modules.values()),
        "edges": list(edges.values()),
        "findings": list(findings.values()),
        "weights": _merged_weights([report.get("weights") or {} for report in reports]),
    }
    return {**found, "words": [in_words(found)]}  # those of each speak of its own counts


def _add(into: dict[Any, dict[str, Any]], key: Any, one: dict[str, Any], counts: Sequence[str]) -> None:
    """Add these counts to those that are known by this key."""
    known = into.get(key)
    if known is None:
        into[key] = dict(one)
        return
    for name in counts:
        if name in known or name in one:
            known[name] = _sum((known.get(name), one.get(name)))


def _merged_weights(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, dict):
                found[name] = _merged_weights([found.get(name, {}), value])
            else:
                found[name] = found.get(name, 0) + value
    return found


# ---- in a line -------------------------------------------------------------------------------------------------------


def ran_lower(data: Data) -> bool:
    """Did anything run in a lower precision?"""
    return any(row["calls"] for row in data["rows"] if row["precision"] in LOWER)


def in_words(data: Data) -> str:
    """How many calls in which precision, the share of the time in a lower one, and what cost most."""
    calls: dict[str, int] = {}
    for row in data["rows"]:
        calls[row["precision"]] = calls.get(row["precision"], 0) + row["calls"]
    if not calls:
        return "no covered operation was called"
    parts = ["calls: " + ", ".join(f"{calls[precision]:,} {_in(precision)}" for precision in _sorted(calls))]
    timed = [row for row in data["rows"] if row.get("seconds")]
    total = sum(row["seconds"] for row in timed)
    if total:
        lower = sum(row["seconds"] for row in timed if row["precision"] in LOWER)
        parts.append(f"{lower / total:.0%} of their time in lower precision")
    costs = _costs(timed, "seconds") if total else _costs(data["rows"], "bytes")
    if costs:
        (name, precision), cost = max(costs.items(), key=lambda item: item[1])
        amount = f"{cost:.3g} s" if total else f"{_size(cost)} of casts"
        parts.append(f"`{name}` {_in(precision)} cost most, {amount}")
    return "; ".join(parts)


def why_nothing_lower(data: Data) -> str:
    """Why nothing ran in a lower precision, as far as the rows tell."""
    if not data["rows"]:
        return "no covered operation was called while casts were on"
    if data["words"]:
        return str(data["words"][0])
    reasons: dict[str, int] = {}
    for row in data["rows"]:
        why = row.get("why") or row.get("reason") or _in(row["precision"])
        reasons[why] = reasons.get(why, 0) + row["calls"]
    return "calls by reason: " + ", ".join(f"{why} {calls:,}" for why, calls in reasons.items())


def _costs(rows: Iterable[dict[str, Any]], name: str) -> dict[tuple[str, str], float]:
    costs: dict[tuple[str, str], float] = {}
    for row in rows:
        if row.get(name):
            key = row["operation"], row["precision"]
            costs[key] = costs.get(key, 0) + row[name]
    return costs


def _size(count: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"


def _sorted(precisions: Iterable[str]) -> list[str]:
    known = [*LOWER, "fp32", "unchanged"]
    return sorted(precisions, key=lambda one: known.index(one) if one in known else len(known))


def _in(precision: str) -> str:
    return precision if precision == "unchanged" else f"in {precision}"
