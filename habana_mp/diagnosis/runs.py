"""The runs of a step that a diagnosis needs, and their form for a step that this process can repeat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from habana_mp.diagnosis.observing import InFloat32, observer_of
from habana_mp.diagnosis.outcomes import Run, RunMode
from habana_mp.diagnosis.replays import Replays
from habana_mp.diagnosis.sites import Locator, Site
from habana_mp.patches.torch.compiled_runs import can_compile, noting_compiled_calls


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


class RunsHere:
    """Runs of a step in this process."""

    advice = (
        "take the batch outside of it (`batch = next(batches)`, then `diagnose(lambda: loss_of(model(batch)))`), and "
        "set counters and generators of random numbers of its own anew in it"
    )

    def __init__(self, replays: Replays) -> None:
        self.compiles = False
        self._replays, self._locator = replays, Locator()

    def find_state(self) -> None:
        """Finds what the step uses, before anything is compared."""
        with noting_compiled_calls() as calls:
            self._replays.find_state(InFloat32(RunMode(), self._locator))
        self.compiles = bool(calls) and can_compile()

    def run(self, mode: RunMode) -> Run:
        return self._replays.run(observer_of(mode, self._locator))


def lowest_of(sites: Iterable[Site]) -> torch.dtype:
    """Returns the lower precision in which these sites ran."""
    is_half = any("float16" in one.dtypes for one in sites)
    return torch.float16 if is_half else torch.bfloat16
