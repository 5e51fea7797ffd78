"""The search for the lines that make a step deviate.

The step runs again with one line in float32, for each of the most suspected lines. If no single line removes the
deviation, the step runs with several lines in float32. Their number is then reduced until no line can be left out, or
until `_MOST_RUNS` runs are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from habana_mp import ops
from habana_mp.diagnosis.findings import finding
from habana_mp.diagnosis.outcomes import WORST, Deviations, Outcome, Tolerances, decrease, deviations, worst
from habana_mp.diagnosis.runs import RunMode, Runs, lowest_of
from habana_mp.diagnosis.sites import Line, Site
from habana_mp.reporting.remedies import Finding

Progress = Callable[[str], None]

#: The largest number of runs with lines in float32, and of runs with a single line.
_MOST_RUNS = 20
_MOST_SINGLE = 9
#: A line is a finding if float32 there reduces a deviation by this share of it, and by this multiple of the allowed
#: deviation.
_LEAST_SHARE = 0.2
_LEAST_EXCESS = 0.5


class Search:
    """The search in one step, whose outcome in float32 and deviations are known."""

    def __init__(self, runs: Runs, exact: Outcome, tolerances: Tolerances, found: Deviations) -> None:
        self._runs, self._exact, self._tolerances, self._found = runs, exact, tolerances, found
        self.count = 0
        self._begin = perf_counter()

    def findings(self, sites: Sequence[Site], step: int, progress: Progress) -> list[Finding]:
        """Returns the findings, the worst first."""
        by_line: dict[Line, list[Site]] = {}
        for site in sites:
            by_line.setdefault(site.where, []).append(site)
        lines = ranked(by_line)
        before = self._tolerances.excess(self._found)
        mended: list[tuple[float, Finding]] = []
        for line in lines[:_MOST_SINGLE]:
            self._tell(progress, f"with `{line.operation}` at {line.place} in float32")
            after = self._with_exact((line,))
            gain = _gain(before, self._tolerances.excess(after))
            if gain > 0:
                after, sums = self._with_sum_if_enough(by_line[line], (), after, progress)
                mended.append((gain, self._finding(by_line[line], self._found, after, step, sums=sums)))
            if self._is_mended(after):
                return [one for _, one in sorted(mended, key=lambda pair: -pair[0])]
        # If another line rounded the inputs of a line, the line has no error of its own until the other line is in
        # float32.
        together = self._together([*lines, *(line for line in by_line if line not in lines)], progress)
        if together is None:
            return [one for _, one in sorted(mended, key=lambda pair: -pair[0])]
        needed, after = together
        found = []
        for line, without in needed.items():
            others = [other for other in needed if other != line]
            with_line, sums = self._with_sum_if_enough(by_line[line], others, after, progress)
            gain = _gain(self._tolerances.excess(without), self._tolerances.excess(after))
            found.append((gain, by_line[line], without, with_line, sums))
        found.sort(key=lambda one: -one[0])
        is_one_of = len(found) > 1
        return [
            self._finding(its, without, with_line, step, is_one_of=is_one_of, sums=sums)
            for _, its, without, with_line, sums in found
        ]

    def _with_sum_if_enough(
        self, sites: Sequence[Site], others: Sequence[Line], after: Deviations, progress: Progress
    ) -> tuple[Deviations, bool]:
        """Returns the deviations with a float32 result of the product at these sites of a line and True, if the step is
        then as good as ``after``, with the line in float32: within what is allowed, or nearly as near. Otherwise
        ``after`` and False."""
        line = sites[0].where
        if not ops.can_have_float32_result(line.operation) or self.count >= _MOST_RUNS:
            return after, False
        self._tell(progress, f"with a float32 result of `{line.operation}` at {line.place}")
        self.count += 1
        mode = RunMode(lines=frozenset(others), sums=frozenset((line,)), operands=lowest_of(sites))
        tried = deviations(self._runs.run(mode, {}).outcome, self._exact)
        excess, allowed = self._tolerances.excess(tried), self._tolerances.excess(after)
        is_enough = all(one <= max(1.0, 1.25 * allowed.get(what, 1.0)) for what, one in excess.items())
        return (tried, True) if is_enough else (after, False)

    def _together(self, lines: Sequence[Line], progress: Progress) -> tuple[dict[Line, Deviations], Deviations] | None:
        """Returns lines that together remove the deviation, each with the deviations without it, and the deviations
        with all of these lines. A line without which no run was made has the deviations of the step itself. Returns
        None if even all lines do not remove the deviation."""
        self._tell(progress, "with all suspected lines in float32")
        after = self._with_exact(lines)
        if not self._is_mended(after):
            return None
        count, least = len(lines), 1
        while least < count and self.count < _MOST_RUNS:
            middle = (least + count) // 2
            self._tell(progress, f"with {middle} lines in float32")
            tried = self._with_exact(lines[:middle])
            if self._is_mended(tried):
                count, after = middle, tried
            else:
                least = middle + 1
        kept, needed = list(lines[:count]), {}
        for place, line in enumerate(reversed(lines[:count])):
            if self.count >= _MOST_RUNS:  # the others were not tried, so they may be unnecessary
                needed.update(dict.fromkeys(lines[: count - place], self._found))
                break
            others = [one for one in kept if one != line]
            self._tell(progress, f"without `{line.operation}` at {line.place} in float32")
            tried = self._with_exact(others)
            if self._is_mended(tried):
                kept, after = others, tried
            else:
                needed[line] = tried
        return needed, after

    def _finding(self, sites: Sequence[Site], before: Deviations, after: Deviations, step: int, **how: bool) -> Finding:
        """Returns the finding; ``how``: as of :func:`finding`."""
        return finding(sites, before, after, step, **how)

    def _tell(self, progress: Progress, what: str) -> None:
        left = ""
        if self.count:
            seconds = (perf_counter() - self._begin) / self.count * (_MOST_RUNS - self.count)
            left = f" (at most {seconds:.0f} s left)"
        progress(f"run {self.count + 1} of at most {_MOST_RUNS}{left}, {what}")

    def _is_mended(self, found: Deviations) -> bool:
        return worst(self._tolerances.excess(found)) <= 1

    def _with_exact(self, lines: Iterable[Line]) -> Deviations:
        """Returns the deviations of the step if these lines run in float32."""
        self.count += 1
        return deviations(self._runs.run(RunMode(lines=frozenset(lines)), {}).outcome, self._exact)


def _gain(before: Deviations, after: Deviations) -> float:
    """Returns the improvement of a run, or 0 if it is not clearly better."""
    gain, is_clear = 0.0, False
    for what, one in before.items():
        other = after.get(what, one)
        gain += decrease(max(one, 1.0), max(other, 1.0))
        least = max(_LEAST_SHARE * min(one, WORST), _LEAST_EXCESS)
        is_clear = is_clear or (one > 1 and decrease(one, other) >= least)
    return gain if is_clear and gain > 0 else 0.0


def ranked(by_line: dict[Line, list[Site]]) -> list[Line]:
    """Returns the suspected lines, the most suspected first. The lines that made values that are not finite come first.
    Then come the first lines of several orders, then the second lines of these, and so on."""

    def total(name: str) -> Callable[[Line], float]:
        return lambda line: sum(abs(getattr(site, name)) for site in by_line[line])

    def largest(name: str) -> Callable[[Line], float]:
        return lambda line: max(getattr(site, name) for site in by_line[line])

    def any_of(name: str) -> Callable[[Line], bool]:
        return lambda line: any(getattr(site, name) for site in by_line[line])

    lines = [line for line in by_line if any_of("error")(line) or any_of("changed")(line) or any_of("birth")(line)]
    seen = [line for line in lines if any_of("has_gradient")(line)]
    unseen = [line for line in lines if line not in seen]
    deciding = [line for line in lines if any_of("decides")(line) or any_of("changed")(line)]
    fading = [line for line in seen if any_of("zero_gradients")(line)]
    orders = (
        sorted(unseen, key=largest("largest_error"), reverse=True),
        sorted(seen, key=total("effect"), reverse=True),
        sorted(deciding, key=largest("largest_error"), reverse=True),
        sorted(seen, key=largest("gradient_error"), reverse=True),
        sorted(seen, key=total("effect_squares"), reverse=True),
        sorted(lines, key=largest("local_error"), reverse=True),
        sorted(fading, key=total("zero_gradients"), reverse=True),
    )
    born = [line for line in lines if any_of("birth")(line)]
    found = dict.fromkeys(sorted(born, key=lambda line: _first_birth(by_line[line])))
    for place in range(max(map(len, orders))):
        found.update(dict.fromkeys(order[place] for order in orders if place < len(order)))
    return list(found)


def _first_birth(sites: Sequence[Site]) -> int:
    return min(site.born for site in sites if site.born is not None)
