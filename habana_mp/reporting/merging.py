"""Sums of rows, and one report of several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from functools import reduce
from typing import Any

from habana_mp.reporting.records import CachedWeights, Edge, ModuleRow, Row
from habana_mp.reporting.report import Report


def merged(reports: Iterable[Report], *, ranks: int | None = None) -> Report:
    """Merges the reports of several processes that ran the same code: rows with the same place and outcome become one.
    ``ranks`` is the number of ranks, by default the sum over the reports."""
    reports = list(reports)
    first = reports[0]
    if len(reports) == 1 and ranks in (None, first.ranks):
        return first
    rows, edges = joined((report.rows, report.edges) for report in reports)
    modules = reduce(_sum, ({(one.path, one.kind): _counts(one) for one in report.modules} for report in reports))
    guarded = reduce(_sum, (report.guarded for report in reports))
    # The larger of two shares of an operation is the later one.
    ranges = dict(sorted((one for report in reports for one in report.ranges.items()), key=lambda item: item[1]))
    return replace(
        first,
        rows=rows,
        weights=CachedWeights(**reduce(_sum, (asdict(report.weights) for report in reports))),
        edges=edges,
        modules=tuple(ModuleRow(*module, **counts) for module, counts in modules.items()),
        seconds=max((one.seconds for one in reports if one.seconds is not None), default=None),  # in parallel
        ranges=dict(sorted(ranges.items(), key=lambda item: -item[1])),
        results=(sum(one.results[0] for one in reports), sum(one.results[1] for one in reports)),
        guarded={text: tuple(sorted({*by})) for text, by in guarded.items()},
        ranks=sum(report.ranks for report in reports) if ranks is None else ranks,
        is_live=False,
    )


def joined(
    parts: Iterable[tuple[Iterable[Row], Iterable[Edge]]], rank: Callable[[Row], Any] | None = None
) -> tuple[tuple[Row, ...], tuple[Edge, ...]]:
    """Joins rows of the same place and outcome, and the edges between them. The rows are sorted by ``rank``; without
    it they are in the order of their first calls."""
    rows: dict[Any, Row] = {}
    edges: dict[Any, Any] = {}
    for its_rows, its_edges in parts:
        keys = []
        for row in its_rows:
            key = tuple(getattr(row, name) for name in _SAME)
            rows[key] = replace(rows[key], **_sum(_counts(rows[key]), _counts(row))) if key in rows else row
            keys.append(key)
        for edge in its_edges:
            ends = keys[edge.source], keys[edge.target]
            edges[ends] = _sum(edges.get(ends), _counts(edge))
    rows = {key: replace(row, order=order) for order, (key, row) in enumerate(rows.items())}
    if rank is not None:
        rows = dict(sorted(rows.items(), key=lambda item: rank(item[1])))
    places = {key: number for number, key in enumerate(rows)}
    return tuple(rows.values()), tuple(Edge(places[a], places[b], **counts) for (a, b), counts in edges.items())


_COUNTED = ("calls", "casts", "bytes", "hits", "needed", "seconds", "cast_seconds", "refused", "noticed")
_SAME = tuple(one.name for one in fields(Row) if one.name not in (*_COUNTED, "order"))


def _counts(part: Row | Edge | ModuleRow) -> dict[str, Any]:
    return {name: getattr(part, name) for name in _COUNTED if hasattr(part, name)}


def _sum(a: Any, b: Any, name: str = "") -> Any:
    """Adds up mappings by name. Takes the larger one of two largest values. None is no value."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, Mapping):
        return {one: _sum(a.get(one), b.get(one), one) for one in {**a, **b}}
    return max(a, b) if name.startswith("largest") else a + b
