"""Runs of a user's function under rules. A file stores their values and times."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from habana_mp.diagnosis.search import ranked
from habana_mp.diagnosis.sites import Site
from habana_mp.reporting.records import Row

#: The name of the run in float32 in the file.
_FLOAT32 = "float32"

#: The rules of a run. None means that everything runs in float32.
Rules = tuple[str, ...] | None

Check = Callable[[Any, Any], Any]

#: An operation, and the path of a module in which it runs.
Suspect = tuple[str, str]


class OutOfTimeError(Exception):
    """The budget is spent."""


class Runner(Protocol):
    """Runs the function or the script that is tuned."""

    preset: str
    #: The name of the lower precision.
    lower: str
    #: The largest number of runs at the same time.
    workers: int

    def run(self, rules: Rules, seed: int) -> tuple[Any, float | None]:
        """Returns the value of a run with these lines in float32, and its seconds. They are None for a run that took
        longer because it was the first one."""

    def rows(self, rules: Rules, seed: int) -> Sequence[Row]:
        """Returns the calls of a run with their precisions, by module."""

    def sites(self, seed: int) -> Sequence[Site]:
        """Returns the sites that a diagnosis measures in the first step of a run; none if it cannot examine the
        step."""


class Configurations:
    """The values of all runs so far, and what was measured in runs. None of them is made again."""

    def __init__(
        self,
        runner: Runner,
        check: Check,
        seeds: Sequence[int],
        *,
        budget: float | None,
        path: Path | None,
        progress: Callable[[str], None],
    ) -> None:
        """``path``: a new file, or one of a tuning with the same preset and precision, which is continued."""
        self._runner, self._check, self._seeds = runner, check, tuple(seeds)
        self._end = None if budget is None else time.monotonic() + budget
        self._path, self._progress = path, progress
        about = {"preset": runner.preset, "dtype": runner.lower}
        #: The contents of the file.
        self._known: dict[str, Any] = {"format": "habana-mp tuning", "version": 1, "about": about}
        self._known |= {"runs": {}, "rows": {}, "suspects": {}}
        #: The smallest set of rules that passed.
        self.best: tuple[str, ...] | None = None
        if path is not None and path.exists():
            self._read(path)

    # ---- runs --------------------------------------------------------------------------------------------------------

    def passes(self, rules: tuple[str, ...]) -> bool:
        """True if the value is good enough with each seed. Raises OutOfTimeError when the budget is spent."""
        if self._runner.workers > 1:
            self._run(None, self._seeds)
            self._run(rules, self._seeds)
        for seed in self._seeds:
            exact = self.value(None, seed)
            if not self._check(self.value(rules, seed), exact):
                return False
        if self.best is None or len(rules) < len(self.best):
            self.best = tuple(rules)
        return True

    def value(self, rules: Rules, seed: int) -> Any:
        self._run(rules, [seed])
        return self._known["runs"][_key(rules, seed)][0]

    def seconds(self, rules: Rules) -> float:
        """Returns the median time of a run. If no run has a time, one is made again until it has one."""
        while True:
            self._run(rules, self._seeds)
            runs: list[tuple[Any, float | None]] = [self._known["runs"][_key(rules, seed)] for seed in self._seeds]
            if times := [seconds for _, seconds in runs if seconds is not None]:
                return statistics.median(times)
            del self._known["runs"][_key(rules, self._seeds[0])]

    def rows(self, rules: tuple[str, ...]) -> list[Row]:
        """Returns the calls of a run with the first seed, by module."""
        seed, what = self._seeds[0], "which operations run, and how long they take"
        key = _key(rules, seed)
        found = self._measured("rows", key, what, lambda: [asdict(one) for one in self._runner.rows(rules, seed)])
        return [Row(**one) for one in found]

    def suspects(self) -> list[Suspect]:
        """Returns the places that a diagnosis of the first step suspects, the most suspected first, with the first
        seed."""
        seed, what = self._seeds[0], "a diagnosis of the first step"

        def measure() -> list[Suspect]:
            lines = ranked(self._runner.sites(seed))
            return [(line.operation, site.module) for line, its in lines.items() for site in its]

        found = self._measured("suspects", str(seed), what, measure)
        return [(operation, module) for operation, module in found]

    def _measured(self, kind: str, key: str, what: str, measure: Callable[[], list[Any]]) -> list[Any]:
        known: dict[str, list[Any]] = self._known[kind]
        if key not in known:
            self.begin(what)
            known[key] = measure()
            self._write()
        return known[key]

    def _run(self, rules: Rules, seeds: Sequence[int]) -> None:
        """Runs a configuration with each seed whose result is not known yet, several at the same time."""
        known = self._known["runs"]
        missing = [seed for seed in seeds if _key(rules, seed) not in known]
        if not missing:
            return
        what = "in float32" if rules is None else f"with {len(rules)} lines in float32"
        self.begin(f"configuration {self.count}, {what}, seed {', '.join(map(str, missing))}")
        with ThreadPoolExecutor(self._runner.workers) as pool:
            # A single worker is this thread, where a user's function expects to run.
            start: Any = map if self._runner.workers == 1 else pool.map
            for seed, result in zip(missing, start(lambda seed: self._runner.run(rules, seed), missing), strict=True):
                known[_key(rules, seed)] = result
                self._write()

    def begin(self, what: str) -> None:
        """Shows what runs next. Raises OutOfTimeError when the budget is spent."""
        left = None if self._end is None else self._end - time.monotonic()
        if left is not None and left < 0:
            raise OutOfTimeError
        self._progress(what if left is None else f"{what}, {left:.0f} s left")

    @property
    def count(self) -> int:
        """The number of configurations that were run, each with as many seeds as were needed."""
        return len({key.partition(": ")[2] for key in self._known["runs"]})

    # ---- the file ----------------------------------------------------------------------------------------------------

    def _read(self, path: Path) -> None:
        try:
            content = json.loads(path.read_text("utf-8"))
            about, _ = content["about"], content["runs"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: it is no file of `hmp.tune`: {error}") from None
        if about != self._known["about"]:
            raise ValueError(
                f"{path}: it belongs to a tuning with {about}, and this one has {self._known['about']}; give another "
                "path, or remove the file"
            )
        self._known |= content

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            text = json.dumps(self._known, indent=1)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"`run` must return numbers, texts, or lists or dicts of these, if `path` is given: {error}"
            ) from None
        beside = self._path.with_name(self._path.name + ".new")
        beside.write_text(text + "\n", "utf-8")
        os.replace(beside, self._path)


def _key(rules: Rules, seed: int) -> str:
    """Returns the name of a run in the file."""
    return f"{seed}: {_FLOAT32 if rules is None else '; '.join(sorted(rules))}"
