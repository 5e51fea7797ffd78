"""What ran in which precision so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from habana_mp import _core


@dataclass(frozen=True)
class Row:
    """One operation in one precision; ``unchanged`` stands for calls that were left alone."""

    operation: str
    precision: str
    calls: int
    casts: int
    bytes: int


@dataclass(frozen=True)
class KeptWeights:
    """The casts of weights that are kept: how often they served, and what they take now.

    ``refused`` counts the uses of weights of which nothing could be kept: others hold their memory too, or the limit
    was reached. They were cast for the call, as without a cache. ``reasons`` tells how many for which reason.
    """

    hits: int = 0
    refreshes: int = 0
    refused: int = 0
    weights: int = 0
    packed: int = 0
    bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        reasons = ", ".join(f"{reason}: {times}" for reason, times in self.reasons.items())
        size = f"{self.bytes / 1e6:.3f} MB, {self.packed} packed"
        return (
            f"kept casts of weights: {self.weights} ({size}), used {self.hits} times, "
            f"refreshed {self.refreshes} times, not kept {self.refused} times" + (f" ({reasons})" if reasons else "")
        )


@dataclass(frozen=True)
class Report:
    """The rows of a report, the busiest operation first. Printing it gives a table."""

    rows: tuple[Row, ...]
    weights: KeptWeights = KeptWeights()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def as_dicts(self) -> list[dict[str, str | int]]:
        """The rows as plain data, for JSON or a data frame."""
        return [asdict(row) for row in self.rows]

    def __str__(self) -> str:
        header = ("operation", "precision", "calls", "casts", "MB cast")
        table = [
            (row.operation, row.precision, f"{row.calls}", f"{row.casts}", f"{row.bytes / 1e6:.3f}")
            for row in self.rows
        ]
        total = sum(row.bytes for row in self.rows) / 1e6
        calls, casts = sum(row.calls for row in self.rows), sum(row.casts for row in self.rows)
        table.append(("total", "", f"{calls}", f"{casts}", f"{total:.3f}"))
        widths = [max(len(line[i]) for line in (header, *table)) for i in range(len(header))]

        def line(cells: tuple[str, ...]) -> str:
            left = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
            right = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
            return "  ".join(left + right).rstrip()

        rule = "  ".join("-" * width for width in widths)
        lines = [line(header), rule, *map(line, table[:-1]), rule, line(table[-1])]
        if self.weights != KeptWeights():
            lines.append(str(self.weights))
        return "\n".join(lines)


def current() -> Report:
    """The counters of the core, one row for each operation and precision."""
    sums: dict[tuple[str, str], list[int]] = {}
    for operation, _, precision, calls, casts, size in _core.counts():
        # `*` is listed as mul and reported as mul; mul_ is another operation.
        shown = operation.strip("_") if operation.startswith("__") else operation
        row = sums.setdefault((shown, precision), [0, 0, 0])
        for i, value in enumerate((calls, casts, size)):
            row[i] += value
    rows = [Row(operation, precision, *counts) for (operation, precision), counts in sums.items()]
    rows.sort(key=lambda row: (-row.calls, row.operation, row.precision))
    return Report(tuple(rows), KeptWeights(**_core.weights_statistics()))
