"""The runs of a step that a diagnosis needs, and their form for a step that this process can repeat."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from habana_mp.diagnosis.exact import apart, is_lower
from habana_mp.diagnosis.observing import PRODUCTS, Compiled, InFloat32, Measuring, Observer, Samples
from habana_mp.diagnosis.outcomes import Outcome, relative_error
from habana_mp.diagnosis.replays import Replays
from habana_mp.diagnosis.sites import Line, Locator, Site
from habana_mp.patches.torch.compiled_runs import Lines, can_compile, noting_compiled_calls

#: The first call of two runs may get values that differ by this share.
_MOST_OF_ROUNDING = 0.05


@dataclass(frozen=True)
class RunMode:
    """The way to run a step: in mixed precision with a comparison to float32, in mixed precision with compiled
    functions, or in float32."""

    #: True: the step runs in mixed precision, and each lowered call is also made in float32.
    measures: bool = False
    #: The lines that run in float32. None means all lines.
    lines: frozenset[Line] | None = None
    #: The lines whose products have operands in lower precision, and a float32 result.
    sums: frozenset[Line] = frozenset()
    operands: torch.dtype = torch.bfloat16
    #: The weights are disturbed by their rounding to this precision, times `sign`.
    rounded: torch.dtype | None = None
    #: Only the weights at these lines are disturbed.
    rounded_lines: frozenset[Line] = frozenset()
    sign: int = 1
    #: Compiled functions run compiled, and round the results of `lines` as eager code does. Nothing is in float32.
    compiled: bool = False


@dataclass
class Run:
    """The results of a run: its outcome, the sites if the run was measured, and samples of results in float32."""

    outcome: Outcome
    sites: list[Site] = field(default_factory=list)
    samples: Samples = field(default_factory=dict)
    #: The lines whose results compiled code may keep in float32.
    unrounded: Lines = field(default_factory=set)
    #: The operation and the place of the first call, and copies of its inputs.
    first_call: tuple[str, ...] = ()
    first_inputs: list[torch.Tensor] = field(default_factory=list)

    def leaves_unrounded(self, site: Site) -> bool:
        """True if compiled code may keep the results of a site in float32. Functions of libraries compute products."""
        return (
            bool(site.dtypes)
            and site.where.operation not in PRODUCTS
            and (site.where.file, site.where.line) in self.unrounded
        )


class Repetition:
    """Checks that each run does the same."""

    def __init__(self, advice: str) -> None:
        self._advice = advice
        #: The inputs of the runs' first calls. There may be several such calls: one under torch.func is observed in
        #: float32 only.
        self._first: dict[tuple[str, ...], list[torch.Tensor]] = {}

    def check(self, run: Run) -> None:
        """Raises ValueError if the first call of a run got other values than in an earlier run."""
        if not _are_same(run.first_inputs, self._first.setdefault(run.first_call, run.first_inputs)):
            raise ValueError(f"the first operation got other values when the step ran again: {self._advice}")


def _are_same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """True if they differ by roundings at most. Calls under torch.func, which are not observed, may have made them."""
    with apart():
        return len(some) == len(others) and all(
            relative_error(one, other) <= _MOST_OF_ROUNDING
            for one, other in zip(some, others, strict=True)
            if not is_lower(one) and not is_lower(other)
        )


class Runs(Protocol):
    """Runs the same step in different ways, each time from the same state."""

    #: True if the step calls compiled functions, and can run with these compiled.
    compiles: bool

    def run(self, mode: RunMode, samples: Samples) -> Run:
        """Runs the step once. ``samples``: the samples of the run in float32; needed for a measured run."""


def observer_of(mode: RunMode, locator: Locator, samples: Samples) -> Observer:
    if mode.measures:
        return Measuring(locator, samples)
    if mode.compiled:
        return Compiled(locator, mode.lines)
    return InFloat32(
        locator,
        mode.lines,
        sums=mode.sums,
        operands=mode.operands,
        rounded=mode.rounded,
        rounded_lines=mode.rounded_lines,
        sign=mode.sign,
    )


def run_of(observer: Observer, outcome: Outcome) -> Run:
    made = Run(outcome, first_call=observer.first_call, first_inputs=observer.first_inputs or [])
    if isinstance(observer, Measuring):
        made.sites = [one for one in observer.sites if one.values or one.counted]
    elif isinstance(observer, InFloat32):
        made.samples = observer.samples
    elif isinstance(observer, Compiled):
        made.unrounded = observer.unrounded
    return made


def sites_of(runs: Runs) -> list[Site]:
    """Returns the sites of a step, measured by comparison with the same step in float32."""
    exact = runs.run(RunMode(), {})
    return runs.run(RunMode(measures=True), exact.samples).sites


class RunsHere:
    """Runs of a step in this process."""

    def __init__(self, replays: Replays) -> None:
        self.compiles = False
        self._replays, self._locator = replays, Locator()
        self._repetition = Repetition(
            "take the batch outside of it (`batch = next(batches)`, then `diagnose(lambda: loss_of(model(batch)))`)"
        )

    def find_state(self) -> None:
        """Finds what the step uses, before anything is compared."""
        with noting_compiled_calls() as calls:
            self._replays.find_state(InFloat32(self._locator))
        self.compiles = bool(calls) and can_compile()

    def run(self, mode: RunMode, samples: Samples) -> Run:
        observer = observer_of(mode, self._locator, samples)
        run = run_of(observer, self._replays.run(observer))
        self._repetition.check(run)
        return run


def lowest_of(sites: Iterable[Site]) -> torch.dtype:
    """Returns the lower precision in which these sites ran."""
    is_half = any("float16" in one.dtypes for one in sites)
    return torch.float16 if is_half else torch.bfloat16
