"""Runs of a user's function under rules. A file stores their values and times."""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from habana_mp.diagnosis.sites import Site
from habana_mp.reporting.records import Row
from habana_mp.tuning.candidates import Suspect, suspects_among

FORMAT, VERSION = "habana-mp tuning", 1

#: The name of the run in float32 in the file.
_FLOAT32 = "float32"

#: The rules of a run. None means that everything runs in float32.
Rules = tuple[str, ...] | None

Check = Callable[[Any, Any], Any]


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
        self._about = {"preset": runner.preset, "dtype": runner.lower}
        self._path, self._progress = path, progress
        self._known: dict[str, tuple[Any, float | None]] = {}
        self._rows: dict[str, list[Row]] = {}
        self._suspects: dict[str, list[Suspect]] = {}
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
        return self._result(rules, seed)[0]

    def seconds(self, rules: Rules) -> float:
        """Returns the median time of a run. If no run has a time, one is made again until it has one."""
        results = [self._result(rules, seed) for seed in self._seeds]
        while not (times := [seconds for _, seconds in results if seconds is not None]):
            self._make(rules, self._seeds[:1])
            results = [self._result(rules, self._seeds[0])]
        return statistics.median(times)

    def rows(self, rules: tuple[str, ...]) -> list[Row]:
        """Returns the calls of a run with the first seed, by module."""
        key = _key(rules, self._seeds[0])
        if key not in self._rows:
            self.begin("which operations run, and how long they take")
            self._rows[key] = list(self._runner.rows(rules, self._seeds[0]))
            self._write()
        return self._rows[key]

    def suspects(self) -> list[Suspect]:
        """Returns the places that a diagnosis of the first step suspects, with the first seed."""
        key = str(self._seeds[0])
        if key not in self._suspects:
            self.begin("a diagnosis of the first step")
            self._suspects[key] = suspects_among(self._runner.sites(self._seeds[0]))
            self._write()
        return self._suspects[key]

    def _result(self, rules: Rules, seed: int) -> tuple[Any, float | None]:
        self._run(rules, [seed])
        return self._known[_key(rules, seed)]

    def _run(self, rules: Rules, seeds: Sequence[int]) -> None:
        """Runs a configuration with each seed whose result is not known yet, several at the same time."""
        missing = [seed for seed in seeds if _key(rules, seed) not in self._known]
        if missing:
            self._make(rules, missing)

    def _make(self, rules: Rules, seeds: Sequence[int]) -> None:
        what = "in float32" if rules is None else f"with {len(rules)} lines in float32"
        self.begin(f"configuration {self.count}, {what}, seed {', '.join(map(str, seeds))}")
        for seed, result in zip(seeds, self._results(rules, seeds), strict=True):
            self._known[_key(rules, seed)] = result
            self._write()

    def _results(self, rules: Rules, seeds: Sequence[int]) -> Iterator[tuple[Any, float | None]]:
        if self._runner.workers == 1:  # in this thread, where a user's function expects to run
            yield from (self._runner.run(rules, seed) for seed in seeds)
            return
        with ThreadPoolExecutor(self._runner.workers) as pool:
            yield from pool.map(lambda seed: self._runner.run(rules, seed), seeds)

    def begin(self, what: str) -> None:
        """Shows what runs next. Raises OutOfTimeError when the budget is spent."""
        left = None if self._end is None else self._end - time.monotonic()
        if left is not None and left < 0:
            raise OutOfTimeError
        self._progress(what if left is None else f"{what}, {left:.0f} s left")

    @property
    def count(self) -> int:
        """The number of configurations that were run, each with as many seeds as were needed."""
        return len({key.partition(": ")[2] for key in self._known})

    # ---- the file ----------------------------------------------------------------------------------------------------

    def _read(self, path: Path) -> None:
        try:
            content = json.loads(path.read_text("utf-8"))
            about = content["about"]
            known = {key: (_decoded(value), one and float(one)) for key, (value, one) in content["runs"].items()}
            rows = {key: [Row(**one) for one in its] for key, its in content.get("rows", {}).items()}
            suspects = {key: [(one, where) for one, where in its] for key, its in content.get("suspects", {}).items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: it is no file of `hmp.tune`: {error}") from None
        if about != self._about:
            raise ValueError(
                f"{path}: it belongs to a tuning with {about}, and this one has {self._about}; give another path, or "
                "remove the file"
            )
        self._known, self._rows, self._suspects = known, rows, suspects

    def _write(self) -> None:
        if self._path is None:
            return
        content = {
            "format": FORMAT,
            "version": VERSION,
            "about": self._about,
            "runs": {key: [_encoded(value), seconds] for key, (value, seconds) in self._known.items()},
            "rows": {key: [asdict(one) for one in its] for key, its in self._rows.items()},
            "suspects": self._suspects,
        }
        beside = self._path.with_name(self._path.name + ".new")
        beside.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        os.replace(beside, self._path)


def _key(rules: Rules, seed: int) -> str:
    """Returns the name of a run in the file."""
    return f"{seed}: {_FLOAT32 if rules is None else '; '.join(sorted(rules))}"


def _encoded(value: Any) -> Any:
    """Returns a value in a form that JSON can store. Numbers that are not finite become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"not finite": repr(value)}
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"`run` must return numbers, texts, or lists or dicts of these, if `path` is given; got "
            f"{type(value).__name__}: {value!r}"
        ) from None
    return value


def _decoded(value: Any) -> Any:
    return float(value["not finite"]) if isinstance(value, dict) and set(value) == {"not finite"} else value
