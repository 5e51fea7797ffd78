"""Makes reports as data by hand, from rows and for a small network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]

#: The default values of a row.
PLAIN: Row = {
    "module": None,
    "file": None,
    "line": None,
    "function": None,
    "operation": "linear",
    "precision": "bf16",
    "reason": "list",
    "why": "in the list",
    "rule": "hmp_default_bf16.txt:12",
    "phase": "forward",
    "calls": 10,
    "casts": 2,
    "casts_up": 0,
    "casts_down": 2,
    "bytes": 64,
    "hits": 0,
    "small": 0,
    "seconds": None,
    "cast_seconds": None,
    "refused": {},
}


def row(operation: str, precision: str = "bf16", **more: Any) -> Row:
    """Returns a row with the given values. The other values are those of :data:`PLAIN`."""
    unknown = more.keys() - PLAIN.keys() - {"order"}
    assert not unknown, unknown
    return {**PLAIN, "operation": operation, "precision": precision, **more}


def report(rows: Sequence[Row], **more: Any) -> dict[str, Any]:
    """Returns a report with these rows, which are in the order of their first calls."""
    placed = [{"order": i, **one} for i, one in enumerate(rows)]
    by_precision: dict[str, dict[str, Any]] = {}
    for one in placed:
        total = by_precision.setdefault(one["precision"], {"calls": 0, "seconds": None})
        total["calls"] += one["calls"]
        if one["seconds"] is not None:
            total["seconds"] = (total["seconds"] or 0.0) + one["seconds"]
    totals = {name: sum(one[name] for one in placed) for name in ("calls", "casts", "bytes", "hits")}
    seconds = [one["seconds"] for one in placed if one["seconds"] is not None]
    totals |= {"seconds": sum(seconds) if seconds else None, "cast_seconds": None, "by_precision": by_precision}
    data = {
        "format": "habana-mp report",
        "version": 1,
        "detail": "lines",
        "environment": {"habana_mp": "0.1.0", "device": "cpu", "script": "train.py"},
        "configuration": {"opt_level": "O1", "lower": "bf16", "preset": "hmp-default"},
        "seconds": 1.0,
        "ranks": 1,
        "words": ["a report made by hand"],
        "totals": totals,
        "rows": placed,
        "modules": [],
        "edges": [],
        "findings": [],
        "weights": {
            "hits": 1,
            "refreshes": 0,
            "refused": 0,
            "products": 1,
            "weights": 1,
            "bytes": 8,
            "reasons": {},
        },
    }
    assert not more.keys() - data.keys()
    return {**data, **more}


def network(layers: int = 2, *, steps: int = 10, softmax: str = "fp32", line: int = 20) -> list[Row]:
    """Returns the rows of a network. Each layer has two linear layers of one module, at two lines, and a softmax."""
    rows = []
    for layer in range(layers):
        module, file = f"Net.layers.{layer}", "/home/somebody/net.py"
        place: Row = {"module": module, "file": file, "function": "forward", "calls": steps}
        rows += [
            row("linear", line=line, seconds=0.001 * steps, **place),
            row("softmax", softmax, line=line + 1, rule="hmp_default_fp32.txt:3", seconds=0.002 * steps, **place),
            row("linear", line=line + 2, seconds=0.003 * steps, **place),
        ]
    rows.append(row("cross_entropy", "fp32", rule="hmp_default_fp32.txt:7", calls=steps, seconds=0.001 * steps))
    return rows
