"""The search for the lines that make a step deviate: lines that mend the step if they run in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import Protocol, TypeVar

import torch

from habana_mp import ops
from habana_mp.diagnosis.findings import (
    EMULATION,
    deviates_by,
    finding,
    most_improved,
    percent,
    precision_of,
    worded,
)
from habana_mp.diagnosis.outcomes import Deviations, Run, RunMode, Tolerances, deviations, worst
from habana_mp.diagnosis.sites import Line, Site
from habana_mp.ops.observed import SOLVES
from habana_mp.reporting.remedies import Finding

Progress = Callable[[str], None]
_T = TypeVar("_T")

#: The largest number of runs with lines in float32.
_MOST_RUNS = 20
#: Lines are findings if float32 there reduces a deviation by this multiple of the allowed deviation.
_LEAST_GAIN = 0.5


class Runs(Protocol):
    """Runs the same step in different ways, each time from the same state."""

    #: True if the step calls compiled functions, and can run with these compiled.
    compiles: bool
    #: What to do if the step does other things each time.
    advice: str

    def run(self, mode: RunMode) -> Run:
        """Runs the step once."""


def sites_of(runs: Runs) -> list[Site]:
    """Returns the sites of a step, measured by comparison with the same step in float32."""
    return runs.run(RunMode(beside=runs.run(RunMode()).samples)).sites


def lowest_of(sites: Iterable[Site]) -> torch.dtype:
    """Returns the lower precision in which these sites ran."""
    is_half = any("float16" in one.dtypes for one in sites)
    return torch.float16 if is_half else torch.bfloat16


class _NoRunLeftError(Exception):
    """As many runs were made as may be."""


class Search:
    """The search in one step, whose run in float32 and deviations are known."""

    def __init__(self, runs: Runs, exact: Run, tolerances: Tolerances, unmended: Deviations) -> None:
        self._runs, self._reference, self._tolerances, self._unmended = runs, exact, tolerances, unmended
        self.run_count = 0
        self._begin = perf_counter()

    def findings(self, sites: Sequence[Site], step: int, progress: Progress) -> list[Finding]:
        """Returns the findings, the worst first."""
        lines = ranked(sites)
        tried: dict[frozenset[Line], Deviations] = {frozenset(): self._unmended}

        def mends(chosen: Iterable[Line]) -> bool:
            chosen = frozenset(chosen)
            if chosen not in tried:
                if self.run_count >= _MOST_RUNS:
                    raise _NoRunLeftError
                self._tell(progress, f"with {len(chosen)} of {len(lines)} lines in float32")
                tried[chosen] = self._deviations_with(chosen)
            return self._is_mended(tried[chosen])

        try:
            needed = frozenset(minimal_set(list(lines), mends) or ())
        except _NoRunLeftError:  # lines may be left that are unnecessary
            needed = min(filter(mends, tried), key=len, default=frozenset())
        if not needed:
            return []
        before, after = (self._tolerances.excess(tried[one]) for one in (frozenset[Line](), needed))
        if all(one - after.get(what, one) < _LEAST_GAIN for what, one in before.items() if one > 1):
            return []
        found = []
        for line in needed:
            others = needed - {line}
            mended, sums = self._with_sum_if_enough(lines[line], others, tried[needed], progress)
            beside = "after" if others and others not in tried else "both" if others else ""
            without = tried.get(others, self._unmended)
            found.append(self._finding(lines[line], without, mended, step, others=beside, sums=sums))
        return sorted(found, key=lambda one: -one.effect)

    def in_modules(self, found: list[Finding], run: Run, step: int, progress: Progress) -> list[Finding]:
        """Returns the findings, with one about the whole module in place of those in a module that solves a linear
        system: the solution multiplies the rounding of all that makes the system."""
        for where, those in ranked(one for one in run.measured.values() if SOLVES.search(one.where.operation)).items():
            modules = tuple(f"{one.module}." for one in those)
            lines = frozenset(one.where for one in run.sites if f"{one.module}.".startswith(modules))
            others = [one for one in found if Line(one.operation, one.file, one.line) not in lines]
            if not lines or (found and len(others) == len(found)) or self.run_count >= _MOST_RUNS:
                continue
            self._tell(progress, f"with the module of `{where.operation}` at {where.place} in float32")
            after = self._deviations_with(lines)
            if worst(self._tolerances.excess(after)) <= max(1.0, worst(self._tolerances.excess(self._unmended)) / 2):
                found = [finding(those, self._unmended, after, step), *others]
        return found

    def _with_sum_if_enough(
        self, sites: Sequence[Site], others: frozenset[Line], after: Deviations, progress: Progress
    ) -> tuple[Deviations, bool]:
        """Tries a float32 result of the product instead of the whole line in float32. Returns its deviations and True
        if these are allowed or at most 1.25 times those of ``after``, else ``after`` and False."""
        line = sites[0].where
        if not ops.can_have_float32_result(line.operation) or self.run_count >= _MOST_RUNS:
            return after, False
        self._tell(progress, f"with a float32 result of `{line.operation}` at {line.place}")
        self.run_count += 1
        mode = RunMode(lines=others, sums=frozenset((line,)), lower=lowest_of(sites))
        tried = deviations(self._runs.run(mode), self._reference)
        excess, excess_of_line = self._tolerances.excess(tried), self._tolerances.excess(after)
        is_enough = all(one <= max(1.0, 1.25 * excess_of_line.get(what, 1.0)) for what, one in excess.items())
        return (tried, True) if is_enough else (after, False)

    def _finding(
        self, sites: Sequence[Site], before: Deviations, after: Deviations, step: int, *, others: str, sums: bool
    ) -> Finding:
        return finding(sites, before, after, step, others=others, sums=sums)

    def _tell(self, progress: Progress, what: str) -> None:
        left = ""
        if self.run_count:
            seconds = (perf_counter() - self._begin) / self.run_count * (_MOST_RUNS - self.run_count)
            left = f" (at most {seconds:.0f} s left)"
        progress(f"run {self.run_count + 1} of at most {_MOST_RUNS}{left}, {what}")

    def _is_mended(self, found: Deviations) -> bool:
        return worst(self._tolerances.excess(found)) <= 1

    def _deviations_with(self, lines: frozenset[Line]) -> Deviations:
        """Returns the deviations of the step if these lines run in float32."""
        self.run_count += 1
        return deviations(self._runs.run(RunMode(lines=lines)), self._reference)


class CompiledSearch(Search):
    """The search in a step whose compiled code deviates from eager code. The lines at fault run in float32 in eager
    code. If this does not make the two agree, compiled code rounds them, which takes longer."""

    #: True if compiled code agrees with eager code when Inductor rounds all results.
    rounding_mends = False
    _rounds = False

    def __init__(self, runs: Runs, compiled: Run, eager: Run, exact: Run, tolerances: Tolerances) -> None:
        super().__init__(runs, eager, tolerances, deviations(compiled, eager))
        self._compiled = compiled
        self._from_exact = deviations(compiled, exact), deviations(eager, exact)

    def findings(self, sites: Sequence[Site], step: int, progress: Progress) -> list[Finding]:
        unrounded = [one for one in sites if self._compiled.leaves_unrounded(one)]
        if unrounded:
            progress("compiled, with all results rounded")
            with suppress(RuntimeError):  # Inductor of older releases cannot do this on a CPU
                rounded = self._runs.run(RunMode(compiled=True))
                self.rounding_mends = self._is_mended(deviations(rounded, self._reference))
        found = super().findings(unrounded or sites, step, progress)
        if found or not self.rounding_mends:
            return found
        self._rounds = True
        return super().findings(unrounded, step, progress)

    def _deviations_with(self, lines: frozenset[Line]) -> Deviations:
        self.run_count += 1
        tried = self._runs.run(RunMode(compiled=self._rounds, lines=lines))
        return deviations(tried, self._reference) if self._rounds else deviations(self._compiled, tried)

    def _with_sum_if_enough(
        self, sites: Sequence[Site], others: frozenset[Line], after: Deviations, progress: Progress
    ) -> tuple[Deviations, bool]:
        """Compiled code and eager code compute products in the same way."""
        return after, False

    def _finding(
        self, sites: Sequence[Site], before: Deviations, after: Deviations, step: int, *, others: str, sums: bool
    ) -> Finding:
        which = "this line and those of the other findings" if others else "this line"
        changed = f"if compiled code rounds {which}" if self._rounds else f"with {which} of eager code in float32"
        way = "keeps its result in float32" if self._compiled.unrounded else "computes it in another way"
        what = most_improved(before, after)
        differs = deviates_by("differs between them", before[what], " in one of them")
        it_differs = " it differs" if before[what] == math.inf else ""
        of_compiled, of_eager = (deviates_by("deviates", one[what]) for one in self._from_exact)
        words = (
            f"compiled code {way}, and eager code rounds it to {precision_of(sites)}; {what} {differs}, and {changed}"
            f"{it_differs} by {percent(after[what])}; from float32, compiled code {of_compiled}, and eager code "
            f"{of_eager}"
        )
        mends = f", or set `{EMULATION}` to round as eager code does" if self.rounding_mends else ""
        found = super()._finding(sites, before, after, step, others="", sums=sums)
        return replace(found, kind="compiled", text=worded(sites, words, found.rule) + mends)


def ranked(sites: Iterable[Site]) -> dict[Line, list[Site]]:
    """Returns the lines with their sites, the most suspected first: those that made values that are not finite, in the
    order in which they did; those through which no gradient passes, by their largest error; the others, by their effect
    on the loss. Lines without an error come last: an error may arise there when the line that rounds their inputs
    is in float32."""
    lines: dict[Line, list[Site]] = {}
    for site in sites:
        lines.setdefault(site.where, []).append(site)

    def suspicion(line: Line) -> tuple[float, bool, bool, float]:
        numbers = [site.first_not_finite for site in lines[line] if site.first_not_finite is not None]
        has_error = any(site.error or site.changed for site in lines[line])
        has_gradient = any(site.has_gradient for site in lines[line])
        sizes = [abs(site.effect) if has_gradient else site.largest_error for site in lines[line]]
        return min(numbers, default=math.inf), not has_error, has_gradient, -max(sizes)

    return {line: lines[line] for line in sorted(lines, key=suspicion)}


def minimal_set(candidates: Sequence[_T], passes: Callable[[tuple[_T, ...]], bool]) -> list[_T] | None:
    """Returns candidates with which the check passes, and of which it needs each one. Returns None if the check fails
    even with all candidates.

    The most suspected candidates must come first. The shortest beginning of the sequence that passes is found by
    halving, and its last candidate is needed. Then the same is done with the candidates before it, until the found
    candidates pass alone. At the end the check is called once without each of them. To find k of n candidates takes at
    most 2 k log2(n) + k calls, in addition to the first calls with no candidate and with all.
    """
    if passes(()):
        return []
    if not passes(tuple(candidates)):
        return None
    found: list[_T] = []
    left = list(candidates)
    while True:
        least, most = 1, len(left)
        while least < most:
            middle = (least + most) // 2
            if passes((*found, *left[:middle])):
                most = middle
            else:
                least = middle + 1
        found.append(left[most - 1])
        left = left[: most - 1]
        if not left or passes(tuple(found)):
            break
    for one in list(found):
        others = tuple(other for other in found if other is not one)
        if len(found) > 1 and passes(others):
            found = list(others)
    return found
