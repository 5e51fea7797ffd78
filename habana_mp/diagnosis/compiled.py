"""The search for the lines that compiled code computes in another precision than eager code."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from habana_mp.diagnosis.findings import EMULATION, deviates_by, most_improved, percent, precision_of, worded
from habana_mp.diagnosis.outcomes import Deviations, Outcome, Tolerances, deviations
from habana_mp.diagnosis.runs import Run, RunMode, Runs
from habana_mp.diagnosis.search import Progress, Search
from habana_mp.diagnosis.sites import Line, Site
from habana_mp.reporting.remedies import Finding


class CompiledSearch(Search):
    """The search in a step whose compiled code deviates from eager code. The lines at fault run in float32 in eager
    code. If this does not make the two agree, compiled code rounds them, which takes longer."""

    #: True if compiled code agrees with eager code when Inductor rounds all results.
    rounding_mends = False
    _rounds = False

    def __init__(self, runs: Runs, compiled: Run, eager: Outcome, exact: Outcome, tolerances: Tolerances) -> None:
        super().__init__(runs, eager, tolerances, deviations(compiled.outcome, eager))
        self._compiled = compiled
        self._from_exact = deviations(compiled.outcome, exact), deviations(eager, exact)

    def findings(self, sites: Sequence[Site], step: int, progress: Progress) -> list[Finding]:
        unrounded = [one for one in sites if self._compiled.leaves_unrounded(one)]
        if unrounded:
            progress("compiled, with all results rounded")
            with suppress(RuntimeError):  # Inductor of older releases cannot do this on a CPU
                rounded = self._runs.run(RunMode(compiled=True), {}).outcome
                self.rounding_mends = self._is_mended(deviations(rounded, self._exact))
        found = super().findings(unrounded or sites, step, progress)
        if found or not self.rounding_mends:
            return found
        self._rounds = True
        return super().findings(unrounded, step, progress)

    def _with_exact(self, lines: Iterable[Line]) -> Deviations:
        self.count += 1
        tried = self._runs.run(RunMode(compiled=self._rounds, lines=frozenset(lines)), {}).outcome
        return deviations(tried, self._exact) if self._rounds else deviations(self._compiled.outcome, tried)

    def _with_sum_if_enough(
        self, sites: Sequence[Site], others: Sequence[Line], after: Deviations, progress: Progress
    ) -> tuple[Deviations, bool]:
        """Compiled code and eager code compute products in the same way."""
        return after, False

    def _finding(self, sites: Sequence[Site], before: Deviations, after: Deviations, step: int, **how: bool) -> Finding:
        which = "this line and those of the other findings" if how.get("is_one_of") else "this line"
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
        found = super()._finding(sites, before, after, step)
        return replace(found, kind="compiled", text=worded(sites, words, found.rule) + mends)
