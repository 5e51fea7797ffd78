"""The lines that a tuning may put into float32: the operations that ran in lower precision, and their modules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from habana_mp import ops
from habana_mp.diagnosis.search import ranked
from habana_mp.diagnosis.sites import Site
from habana_mp.reporting.records import Row
from habana_mp.reporting.remedies import rules_for

#: An operation that runs in more modules than this gets no lines for single modules.
_MOST_MODULES = 400


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
        self._rows = [row for row in rows if row.is_lower and _may_be_listed(row.operation)]
        self._rank = {place: number for number, place in reversed(list(enumerate(suspects)))}
        self._rank_of_operation = {place[0]: number for number, place in reversed(list(enumerate(suspects)))}

    def operations(self) -> list[str]:
        """Returns the operations, as lines of a list."""
        calls: dict[str, int] = {}
        for row in self._rows:
            calls[row.operation] = calls.get(row.operation, 0) + row.calls
        last = len(self._rank)
        return sorted(calls, key=lambda one: (self._rank_of_operation.get(one, last), -calls[one], one))

    def in_modules(self, operations: Sequence[str]) -> list[str]:
        """Returns lines that name these operations in each of their modules. For an operation that also runs outside of
        modules, the last lines contain its name alone."""
        last = len(self._rank)
        found: dict[str, tuple[int, str]] = {}
        for operation in operations:
            its = [row for row in self._rows if row.operation == operation]
            if any(row.module is None for row in its) or len(its) > _MOST_MODULES:
                found[operation] = (last + 1, operation)
            for row in its if len(its) <= _MOST_MODULES else ():
                rank = self._rank.get((operation, row.module or ""), last)
                for line in rules_for([row], "fp32") if row.module is not None else ():
                    found.setdefault(line, (rank, line))
        return sorted(found, key=lambda line: found[line])


def _may_be_listed(operation: str) -> bool:
    return ops.resolve(operation) is not None and not ops.is_in_place(operation) and ops.computes(operation)
