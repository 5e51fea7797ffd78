"""The runs of a step that a diagnosis needs, and those of a step that this process can repeat."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from habana_mp.diagnosis.exact import is_lower
from habana_mp.diagnosis.observing import InFloat32, Observer, Samples, Watching
from habana_mp.diagnosis.outcomes import Outcome
from habana_mp.diagnosis.replays import Replays
from habana_mp.diagnosis.sites import Line, Locator, Site


@dataclass(frozen=True)
class RunMode:
    """How to run a step: as it is beside float32, or in float32."""

    #: True: as it is, each lowered call beside the same call in float32.
    is_watched: bool = False
    #: The lines that run in float32. None: all.
    lines: frozenset[Line] | None = None
    #: The weights are disturbed by their rounding to this precision, times `sign`.
    rounded: torch.dtype | None = None
    sign: int = 1


@dataclass
class Run:
    """What a run gave: its outcome, the sites of a watched one, and samples of results in float32."""

    outcome: Outcome
    sites: list[Site] = field(default_factory=list)
    samples: Samples = field(default_factory=dict)
    #: Copies of what the first call got.
    first_inputs: list[torch.Tensor] = field(default_factory=list)


class Repetition:
    """Checks that each run does the same."""

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._first: list[torch.Tensor] | None = None

    def check(self, run: Run) -> None:
        """Raises ValueError if the first call of a run got other values than in the first run."""
        if self._first is None:
            self._first = run.first_inputs
        elif not _are_same(run.first_inputs, self._first):
            raise ValueError(f"the first operation got other values when the step ran again: {self._advice}")


def _are_same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(
        one.shape == other.shape and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
        for one, other in zip(some, others, strict=True)
        if not is_lower(one) and not is_lower(other)
    )


class Runs(Protocol):
    """Runs the same step in different ways, each time from the same state."""

    def run(self, mode: RunMode, samples: Samples) -> Run:
        """Runs the step once. ``samples``: those of the run in float32, for a watched one."""


def observer_of(mode: RunMode, locator: Locator, samples: Samples) -> Observer:
    if mode.is_watched:
        return Watching(locator, samples)
    return InFloat32(locator, mode.lines, rounded=mode.rounded, sign=mode.sign)


def run_of(observer: Observer, outcome: Outcome) -> Run:
    made = Run(outcome, first_inputs=observer.first_inputs or [])
    if isinstance(observer, Watching):
        made.sites = [one for one in observer.sites if one.values or one.counted]
    elif isinstance(observer, InFloat32):
        made.samples = observer.samples
    return made


def sites_of(runs: Runs) -> list[Site]:
    """Returns what is measured in a step beside the same step in float32."""
    exact = runs.run(RunMode(), {})
    return runs.run(RunMode(is_watched=True), exact.samples).sites


class RunsHere:
    """Runs of a step in this process."""

    def __init__(self, replays: Replays) -> None:
        self._replays, self._locator = replays, Locator()
        self._repetition = Repetition(
            "take the batch outside of it (`batch = next(batches)`, then `diagnose(lambda: loss_of(model(batch)))`)"
        )

    def run(self, mode: RunMode, samples: Samples) -> Run:
        observer = observer_of(mode, self._locator, samples)
        run = run_of(observer, self._replays.run(observer))
        self._repetition.check(run)
        return run


def lowest_of(sites: Iterable[Site]) -> torch.dtype:
    """Returns the lower precision in which these sites ran."""
    is_half = any("float16" in one.dtypes for one in sites)
    return torch.float16 if is_half else torch.bfloat16
