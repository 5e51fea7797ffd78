"""Counters of Gaudi's bridge, under their names. Nothing is compiled and no graph is cached here, so they stay 0."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

__all__ = ["metric_global", "metric_localcontext", "metrics_dump"]

_COUNTERS = {
    "graph_compilation": ("TotalNumber", "TotalTime", "AvgTime"),
    "cpu_fallback": ("TotalNumber", "FallbackOps"),
    "memory_defragmentation": ("TotalNumber", "TotalSuccessful", "AvgTime", "MaxTime"),
    "recipe_cache": ("TotalHit", "TotalMiss", "RecipeHit", "RecipeMiss"),
}


class _Metric:
    """One metric; also a context in which it is counted."""

    def __init__(self, name: str) -> None:
        if name not in _COUNTERS:
            raise ValueError(f"a metric must be one of {', '.join(_COUNTERS)}; got {name!r}")
        self._name = name

    def stats(self) -> list[tuple[str, Any]]:
        """Returns each counter with its value."""
        details = ("FallbackOps", "RecipeHit", "RecipeMiss")
        return [(name, {} if name in details else 0) for name in _COUNTERS[self._name]]

    def __enter__(self) -> _Metric:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: types.TracebackType | None
    ) -> None:
        return None


def metric_global(name: str) -> _Metric:
    """Returns the metric since the process began."""
    return _Metric(name)


def metric_localcontext(name: str) -> _Metric:
    """Returns a context that counts the metric."""
    return _Metric(name)


def metrics_dump(filename: str, format: str = "json") -> None:
    """Writes all metrics into a file.

    Raises:
        ValueError: ``format`` is neither ``"json"`` nor ``"text"``.
    """
    if format not in ("json", "text"):
        raise ValueError(f'`format` must be "json" or "text"; got {format!r}')
    found = {name: dict(_Metric(name).stats()) for name in _COUNTERS}
    lines = (f"{name}: {counters}\n" for name, counters in found.items())
    Path(filename).write_text(json.dumps(found, indent=2) if format == "json" else "".join(lines), "utf-8")
