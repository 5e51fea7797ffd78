"""Tuning: finds lists with which a training or an evaluation is as good as in float32, and as fast as possible."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch

from habana_mp import ops
from habana_mp.diagnosis.diagnosis import ProgressLine, diagnosed_process
from habana_mp.diagnosis.replays import Replays, RunsHere
from habana_mp.diagnosis.search import minimal_set, sites_of
from habana_mp.diagnosis.sites import Site
from habana_mp.patches.installation import installation
from habana_mp.policy.lists import parse_line
from habana_mp.policy.module_rules import given_rules
from habana_mp.policy.options import Options
from habana_mp.policy.precisions import FLOAT32_RESULT
from habana_mp.policy.presets import preset_named
from habana_mp.policy.rules import Policy, policy_from_lists
from habana_mp.reporting import counting
from habana_mp.reporting.records import Row
from habana_mp.reporting.remedies import rules_for
from habana_mp.reporting.watch import watch
from habana_mp.tuning.configurations import Check, Configurations, OutOfTimeError, Rules, Runner, Suspect
from habana_mp.tuning.tuned import Tuned, as_rules

Run = Callable[[int], Any]
_T = TypeVar("_T")

#: An operation counts as slower in lower precision if it takes this many times as long as in float32. Such operations
#: must lose more than this share of the run, all together.
_SLOWER = 1.15
_LEAST_SHARE = 0.01
#: The run must become faster by this factor to keep operations in float32 for speed.
_FASTER = 0.98


def tune(
    run: Run,
    check: Check,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    budget: float | None = None,
    path: str | os.PathLike[str] | None = None,
    preset: str = "hmp-default",
    dtype: torch.dtype | str = torch.bfloat16,
) -> Tuned:
    """Finds lists with which a run is as good as in float32, and with as few operations in float32 as possible.

    ``run`` is called in float32, and then with everything lowered that the preset lowers. If the value is not good
    enough, operations are put into float32 until it is, first everywhere and then in single modules. At the end each of
    them is left out once, to find out if it is needed.

    Args:
        run: ``run(seed)`` sets the seed, trains or evaluates, and returns a value. It must not convert.
        check: ``check(value, exact)`` returns whether a value is good enough; ``exact`` is the value in float32 with
            the same seed.
        seeds: A configuration must be good enough with each of them.
        budget: The number of seconds after which no new run begins. Then the best result so far is returned.
        path: A file that stores the values of all runs. Another call with the same file continues where the last one
            stopped, and makes none of these runs again.
        preset: The lists to start from.
        dtype: The lower precision.

    Raises:
        RuntimeError: a conversion is in force, or ``run`` makes one.
        ValueError: an unknown preset or precision, no seeds, or a file of another tuning.
        TypeError: ``run`` or ``check`` cannot be called, or ``path`` cannot store a value.
    """
    for name, function in (("run", run), ("check", check)):
        if not callable(function):
            raise TypeError(f"`{name}` must be a function; got {type(function).__name__}: {function!r}")
    if installation.policy is not None:
        raise RuntimeError("`hmp.tune` converts by itself: call it without a conversion, or after `hmp.restore()`")
    seeds = list(seeds)
    if not seeds:
        raise ValueError("`seeds` must hold at least one seed")
    if budget is not None and not budget > 0:
        raise ValueError(f"`budget` must be None or seconds above 0; got {budget!r}")
    runner = _RunsHere(run, preset, Options(dtype=dtype).lower)
    return tuned_by(runner, check, seeds=seeds, budget=budget, path=None if path is None else Path(path))


class _RunsHere:
    """Runs of a function in this process."""

    workers = 1

    def __init__(self, run: Run, preset: str, lower: str) -> None:
        self._run, self.preset, self.lower = run, preset, lower
        self._lists = preset_named(preset)
        self._ran_in_float32: set[bool] = set()

    def run(self, rules: Rules, seed: int) -> tuple[Any, float | None]:
        with self._converted(rules) as policy:
            begin = perf_counter()
            value = self._run(seed)
            seconds = perf_counter() - begin
            if installation.policy is not policy:
                raise RuntimeError("`run` must not call `hmp.convert` or `hmp.restore`: `hmp.tune` does so")
        # The first run in each precision imports, allocates memory and chooses kernels.
        is_first = (rules is None) not in self._ran_in_float32
        self._ran_in_float32.add(rules is None)
        return value, None if is_first else seconds

    @contextmanager
    def _converted(self, rules: Rules) -> Iterator[Policy]:
        policy = Policy(lower=self.lower)
        if rules is not None:
            given = given_rules(as_rules(rules), self.lower)
            policy = policy_from_lists(self._lists, self.lower, given=given)
        try:
            installation.install(policy, Options(within=self._lists.within))
            yield policy
        finally:
            installation.end_policy()

    def rows(self, rules: Rules, seed: int) -> tuple[Row, ...]:
        with self._converted(rules), watch("modules"):
            counting.reset()
            self._run(seed)
            return tuple(counting.current())

    def sites(self, seed: int) -> list[Site]:
        replays = Replays(lambda: self._run(seed))
        with self._converted(()), suppress(ValueError, RuntimeError), diagnosed_process, replays.from_same_state():
            return sites_of(RunsHere(replays))
        return []


def tuned_by(runner: Runner, check: Check, *, seeds: Sequence[int], budget: float | None, path: Path | None) -> Tuned:
    """Returns the result for what this runner runs."""
    found: list[str] | None = None
    faster: list[str] = []
    is_minimal = True
    values, speedup = {}, 0.0
    with ProgressLine(command="tune") as progress:
        known = Configurations(runner, check, seeds, budget=budget, path=path, progress=progress)
        try:
            found = _needed(known)
            if found is not None:
                found = _with_float32_results(known, found)
                faster = _faster(known, found)
        except OutOfTimeError:
            if found is None and known.best is not None:
                found, is_minimal = list(known.best), False
        with suppress(OutOfTimeError):
            lines = (*(found or ()), *faster)
            values = {seed: (known.value(None, seed), known.value(lines, seed)) for seed in seeds}
            speedup = known.seconds(None) / known.seconds(lines)
    return Tuned(
        rules=as_rules(found or ()),
        faster=as_rules(faster),
        passed=found is not None,
        runs=known.count,
        speedup=speedup,
        values=values,
        is_minimal=is_minimal,
        preset=runner.preset,
        dtype=runner.lower,
    )


def _needed(known: Configurations) -> list[str] | None:
    """Returns the lines that are needed for accuracy; None if no lines are enough."""
    if known.passes(()):
        return []
    candidates = _Candidates(known.rows(()), known.suspects())
    operations = minimal_set(candidates.operations(), known.passes)
    if operations is None:
        return None
    in_modules = candidates.in_modules(operations)
    narrowed = None if set(in_modules) == set(operations) else minimal_set(in_modules, known.passes)
    return operations if narrowed is None else narrowed


def _with_float32_results(known: Configurations, needed: Sequence[str]) -> list[str]:
    """Returns the lines with a float32 result of lowered operands wherever that is enough, the last one first."""
    lines = list(needed)
    for place in reversed(range(len(lines))):
        if ops.can_have_float32_result(parse_line(lines[place], "", 0).name):
            tried = [*lines[:place], lines[place] + FLOAT32_RESULT, *lines[place + 1 :]]
            if known.passes(tuple(tried)):
                lines = tried
    return lines


def _faster(known: Configurations, needed: Sequence[str]) -> list[str]:
    """Returns the operations that make the run faster in float32 than in lower precision."""
    rows, whole = known.rows(tuple(needed)), known.seconds(tuple(needed))
    operations = _Candidates(rows, ()).operations()
    low, exact = _seconds_of(rows), _seconds_of(known.rows((*needed, *operations)))
    saved = {one: low[one] - exact[one] for one in operations if one in exact and low[one] > _SLOWER * exact[one]}
    together = (*needed, *sorted(saved))
    is_faster = (
        sum(saved.values()) >= _LEAST_SHARE * whole
        and known.passes(together)
        and known.seconds(together) < _FASTER * whole
    )
    return sorted(saved) if is_faster else []


def _seconds_of(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the time of each operation, including its casts."""
    found: dict[str, float] = {}
    for row in rows:
        if row.seconds is not None:
            found[row.operation] = found.get(row.operation, 0.0) + row.seconds
    return found


class _Candidates:
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
