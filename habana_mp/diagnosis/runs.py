"""The runs of a step that a diagnosis needs, and those of a step that this process can repeat."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from habana_mp.diagnosis.observing import InFloat32, Observer, Samples, Watching
from habana_mp.diagnosis.outcomes import Outcome
from habana_mp.diagnosis.replays import Replays
from habana_mp.diagnosis.sites import Line, Locator, Site


@dataclass(frozen=True)
class Way:
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


class Runs(Protocol):
    """Runs the same step in different ways, each time from the same state."""

    def run(self, way: Way, samples: Samples) -> Run:
        """Runs the step once. ``samples``: those of the run in float32, for a watched one."""


def observer_of(way: Way, locator: Locator, samples: Samples) -> Observer:
    if way.is_watched:
        return Watching(locator, samples)
    return InFloat32(locator, way.lines, rounded=way.rounded, sign=way.sign)


def run_of(observer: Observer, outcome: Outcome) -> Run:
    if isinstance(observer, Watching):
        return Run(outcome, sites=[one for one in observer.sites if one.values or one.counted])
    return Run(outcome, samples=observer.samples if isinstance(observer, InFloat32) else {})


class RunsHere:
    """Runs of a step in this process."""

    def __init__(self, replays: Replays) -> None:
        self._replays, self._locator = replays, Locator()

    def run(self, way: Way, samples: Samples) -> Run:
        observer = observer_of(way, self._locator, samples)
        return run_of(observer, self._replays.run(observer))


def lowest_of(sites: Iterable[Site]) -> torch.dtype:
    """Returns the lower precision in which these sites ran."""
    is_half = any("float16" in one.dtypes for one in sites)
    return torch.float16 if is_half else torch.bfloat16
