"""Counters of Gaudi's bridge, under their names. Nothing is compiled and no graph is cached here, so they stay 0."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

_COUNTERS = {
    "graph_compilation": ("TotalNumber", "TotalTime", "AvgTime"),
    "cpu_fallback": ("TotalNumber", "FallbackOps"),
    "memory_defragmentation": ("TotalNumber", "TotalSuccessful", "AvgTime", "MaxTime"),
    "recipe_cache": ("TotalHit", "TotalMiss", "RecipeHit", "RecipeMiss"),
}


class _Metric(nullcontext[Any]):
    """One metric; also a context in which it is counted."""

    def __init__(self, name: str) -> None:
        if name not in _COUNTERS:
            raise ValueError(f"a metric must be one of {', '.join(_COUNTERS)}; got {name!r}")
        super().__init__(self)
        self._name = name

    def stats(self) -> list[tuple[str, Any]]:
        """Returns each counter with its value."""
        details = ("FallbackOps", "RecipeHit", "RecipeMiss")
        return [(name, {} if name in details else 0) for name in _COUNTERS[self._name]]


#: The metric since the process began, and a context that counts it.
metric_global = metric_localcontext = _Metric


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
