"""The lines that a tuning may put into float32: the operations that ran in lower precision, and their modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from habana_mp import ops
from habana_mp.diagnosis.search import ranked
from habana_mp.diagnosis.sites import Site
from habana_mp.reporting.records import Row
from habana_mp.reporting.remedies import rules_for

_T = TypeVar("_T")

#: An operation, and the path of a module in which it runs.
Suspect = tuple[str, str]


def suspects_among(sites: Sequence[Site]) -> list[Suspect]:
    """Returns the places of these sites, the most suspected first."""
    return [(line.operation, site.module) for line, its in ranked(sites).items() for site in its]


class Candidates:
    """The lines of lists that may be needed, the most suspected first."""

    def __init__(self, rows: Iterable[Row], suspects: Sequence[Suspect]) -> None:
        """``rows``: the calls of a run, by module. ``suspects``: what a diagnosis of its first step suspects, the most
        suspected places first; may be empty."""
        self._rows = [
            row
            for row in rows
            if row.is_lower
            and ops.resolve(row.operation) is not None
            and not ops.is_in_place(row.operation)
            and ops.computes(row.operation)
        ]
        self._suspects = suspects

    def operations(self) -> list[str]:
        """Returns the operations, as lines of a list."""
        calls: Counter[str] = Counter()
        for row in self._rows:
            calls[row.operation] += row.calls
        ranks = _ranks(operation for operation, _ in self._suspects)
        return sorted(calls, key=lambda one: (ranks.get(one, len(ranks)), -calls[one], one))

    def in_modules(self, operations: Sequence[str]) -> list[str]:
        """Returns lines that name these operations in each of their modules. For an operation that also runs outside of
        modules, the last lines contain its name alone."""
        ranks = _ranks(self._suspects)
        found: dict[str, tuple[int, str]] = {}
        for row in self._rows:
            if row.operation in operations and row.module is None:
                found[row.operation] = (len(ranks) + 1, row.operation)
            elif row.operation in operations:
                for line in rules_for(row.operation, [row.module], "fp32"):
                    found.setdefault(line, (ranks.get((row.operation, row.module or ""), len(ranks)), line))
        return sorted(found, key=lambda line: found[line])


def _ranks(suspects: Iterable[_T]) -> dict[_T, int]:
    return {one: number for number, one in enumerate(dict.fromkeys(suspects))}
