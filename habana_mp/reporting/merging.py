"""Sums of rows, and one report of several processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
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
    rows: dict[tuple[Any, ...], Row] = {}
    edges: dict[tuple[Any, Any], list[int]] = {}
    modules: dict[str, ModuleRow] = {}
    for report in reports:
        keys = [key_of(row) for row in report.rows]
        for key, row in zip(keys, report.rows, strict=True):
            rows[key] = sum_of(rows[key], row) if key in rows else replace(row, order=len(rows))
        for edge in report.edges:
            counts = edges.setdefault((keys[edge.source], keys[edge.target]), [0, 0])
            counts[0] += edge.calls
            counts[1] += edge.casts
        for one in report.modules:
            known = modules.get(one.path, replace(one, calls=0, seconds=0.0))
            modules[one.path] = replace(known, calls=known.calls + one.calls, seconds=known.seconds + one.seconds)
    places = {key: number for number, key in enumerate(rows)}
    return replace(
        first,
        rows=tuple(rows.values()),
        weights=_sum_of_weights([report.weights for report in reports]),
        edges=tuple(Edge(places[a], places[b], *counts) for (a, b), counts in edges.items()),
        modules=tuple(modules.values()),
        seconds=max((one.seconds for one in reports if one.seconds is not None), default=None),  # in parallel
        ranges=_largest([report.ranges for report in reports]),
        results=(sum(one.results[0] for one in reports), sum(one.results[1] for one in reports)),
        guarded=_with_all_ranks([report.guarded for report in reports]),
        ranks=sum(report.ranks for report in reports) if ranks is None else ranks,
        is_live=False,
    )


_COUNTED = ("calls", "casts", "bytes", "hits", "small", "seconds", "cast_seconds")


def key_of(row: Row) -> tuple[Any, ...]:
    return tuple(
        getattr(row, one.name) for one in fields(row) if one.name not in (*_COUNTED, "order", "refused", "noticed")
    )


def sum_of(a: Row, b: Row) -> Row:
    counts = {name: _added(getattr(a, name), getattr(b, name)) for name in _COUNTED}
    return replace(a, **counts, refused=_added_up([a.refused, b.refused]), noticed=_joined(a.noticed, b.noticed))


def _joined(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    """Returns what two rows noticed: the sums of their counts, and the larger of their largest values."""
    return {
        name: max(a.get(name, 0), b.get(name, 0)) if name.startswith("largest") else a.get(name, 0) + b.get(name, 0)
        for name in (*a, *(one for one in b if one not in a))
    }


def _added(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


def _added_up(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for one in counts:
        for name, count in one.items():
            sums[name] += count
    return dict(sums)


def _largest(shares: Iterable[Mapping[str, float]]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for one in shares:
        for name, share in one.items():
            largest[name] = max(share, largest.get(name, 0.0))
    return dict(sorted(largest.items(), key=lambda item: -item[1]))


def _with_all_ranks(guarded: Iterable[Mapping[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    all_ranks: dict[str, set[int]] = defaultdict(set)
    for one in guarded:
        for text, ranks in one.items():
            all_ranks[text].update(ranks)
    return {text: tuple(sorted(ranks)) for text, ranks in all_ranks.items()}


def _sum_of_weights(all_weights: list[CachedWeights]) -> CachedWeights:
    counts = {name: sum(getattr(one, name) for one in all_weights) for name in _COUNTS_OF_WEIGHTS}
    return CachedWeights(**counts, reasons=_added_up(one.reasons for one in all_weights))


_COUNTS_OF_WEIGHTS = (
    "hits",
    "refreshes",
    "refreshed_bytes",
    "refused",
    "products",
    "weights",
    "bytes",
)
