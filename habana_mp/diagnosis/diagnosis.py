"""The diagnosis of a step: which operations are harmful in lower precision.

The step runs in float32, then as it is with each lowered operation beside it in float32. If it deviates by more than
the model's own noise, it runs again for the operations in question, each time with one of them in float32: what mends
the step is harmful.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from habana_mp.diagnosis.findings import Finding, OperationRow, row_of
from habana_mp.diagnosis.outcomes import Deviations, Outcome, Tolerances, deviations, worst
from habana_mp.diagnosis.page import html_page
from habana_mp.diagnosis.replays import Replays, Step
from habana_mp.diagnosis.runs import RunMode, Runs, RunsHere, lowest_of
from habana_mp.diagnosis.search import Progress, Search
from habana_mp.diagnosis.sites import Site
from habana_mp.patches.installation import installation
from habana_mp.patches.tools.eager_mode import EagerMode

FORMAT, VERSION = "habana-mp diagnosis", 1

#: Two runs in float32 may differ by this much: some operations sum in another order each time.
_MOST_OF_REPETITION = 0.01


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The result of :func:`diagnose`."""

    #: What is harmful, the worst first.
    findings: tuple[Finding, ...]
    #: All operations that ran in lower precision, those with the largest effect on the loss first.
    rows: tuple[OperationRow, ...]
    #: How much the step deviates from float32, as multiples of what is allowed, by what was compared.
    excess: dict[str, float] = field(hash=False)
    loss: float | None = None
    loss_in_float32: float | None = None
    #: The number of runs of the step with one line in float32.
    runs: int = 0

    @property
    def healthy(self) -> bool:
        """True if nothing deviates by more than the model's own noise."""
        return bool(self.excess) and not self.findings and worst(self.excess) <= 1

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"{number}. {one.text}" for number, one in enumerate(self.findings, 1))])

    @property
    def headline(self) -> str:
        """The result in a sentence or two."""
        if not self.excess:
            return (
                "Nothing could be compared: the step returned no tensor, ran no backward, and changed no state before "
                "the first step of an optimizer."
            )
        if not self.rows:
            return "Nothing ran in lower precision."
        if self.findings:
            many = "One operation is" if len(self.findings) == 1 else f"{len(self.findings)} operations are"
            worst_first = "" if len(self.findings) == 1 else ", the worst first"
            result = f"{many} harmful in lower precision{worst_first}."
        elif self.healthy:
            result = "Healthy: the step deviates from float32 by no more than the model's own noise."
        else:
            what = max(self.excess, key=lambda one: self.excess[one])
            result = (
                f"No single operation was found to be harmful, but {what} deviates from float32 by "
                f"{self.excess[what]:.3g} times what is allowed."
            )
        if self.loss is None or self.loss_in_float32 is None:
            return result
        return f"{result} The loss is {self.loss:.6g}, in float32 {self.loss_in_float32:.6g}."

    def __repr__(self) -> str:
        return f"<Diagnosis with {len(self.findings)} findings; print() shows them>"

    def to_dict(self) -> dict[str, Any]:
        """Returns all data as numbers, texts, lists and dicts. Numbers that are not finite become None."""
        found: dict[str, Any] = _plain(
            {
                "format": FORMAT,
                "version": VERSION,
                "headline": self.headline,
                "healthy": self.healthy,
                "loss": self.loss,
                "loss_in_float32": self.loss_in_float32,
                "runs": self.runs,
                "excess": self.excess,
                "findings": [asdict(one) for one in self.findings],
                "rows": [asdict(one) for one in self.rows],
            }
        )
        return found

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Writes all data as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", "utf-8")

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Writes a page with the findings and all operations, which loads no other file."""
        Path(path).write_text(html_page(self.headline, self.findings, self.rows), "utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def diagnose(step: Step, *, steps: int = 1, every: int = 1) -> Diagnosis:
    """Finds the operations whose lower precision harms a step, and the rules that mend it.

    ``step()`` runs the forward and returns the loss; the backward is run here if the step does not run it. It is called
    several times and must do the same each time: take the batch outside of it. An optimizer's step ends it. Gradients,
    buffers, random numbers and weights are afterwards as before.

    Args:
        step: A function without parameters. The other values that it returns are compared too.
        steps: The number of steps. With more than one, ``step()`` is also run as it is after each look, so that the
            model trains on if it runs an optimizer.
        every: Looks at each so many steps: the first, and every such one after it.

    Raises:
        ValueError: a ``step`` that does other things when it is called again, or numbers below 1.
        TypeError: a ``step`` that cannot be called.
    """
    if not callable(step):
        raise TypeError(f"`step` must be a function that runs a step and returns its loss; got {type(step).__name__}")
    for name, value in (("steps", steps), ("every", every)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"`{name}` must be a whole number of at least 1; got {value!r}")
    looks = []
    with diagnosed_process():
        for number in range(steps):
            if number % every == 0:
                replays = Replays(step)
                prefix = f"step {number + 1} of {steps}: " if steps > 1 else ""
                with ProgressLine(prefix) as progress, replays.from_same_state():
                    looks.append(look(RunsHere(replays), number, progress))
            if steps > 1:
                step()
    return _merged(looks)


@contextmanager
def diagnosed_process() -> Iterator[None]:
    """A block in which observers see all operations: those without a rule too, and those of compiled code."""
    eager = EagerMode()
    try:
        eager.begin()
        installation.diagnose(diagnosed=True)
        yield
    finally:
        installation.diagnose(diagnosed=False)
        eager.end()


class ProgressLine:
    """A line on the terminal that says what runs. Nothing is written to a file or a pipe."""

    def __init__(self, prefix: str = "", command: str = "diagnose") -> None:
        self._prefix = f"{command}: {prefix}"
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> Callable[[str], None]:
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _show(self, text: str) -> None:
        if self._is_shown:
            print(f"\r\033[K{self._prefix}{text}", end="", file=sys.stderr, flush=True)


def look(runs: Runs, number: int, progress: Progress) -> Diagnosis:
    """Returns the diagnosis of one step."""
    progress("in float32")
    reference = runs.run(RunMode(), {})
    exact = reference.outcome
    progress("as it is, beside float32")
    watched = runs.run(RunMode(is_watched=True), reference.samples)
    reference.samples.clear()
    sites, lowered = watched.sites, watched.outcome
    rows = tuple(row_of(one) for one in sorted(sites, key=lambda one: -abs(one.effect)))
    found = deviations(lowered, exact)
    tolerances = Tolerances(exact, [], lowest_of(sites))
    if worst(tolerances.excess(found)) > 1 and exact.is_finite:
        tolerances = Tolerances(exact, _noise(runs, exact, sites, progress), lowest_of(sites))
    excess = tolerances.excess(found)
    harmful: Sequence[Finding] = ()
    search = Search(runs, exact, tolerances, found)
    if worst(excess) > 1:
        harmful = search.findings(sites, number, progress)
    return Diagnosis(tuple(harmful), rows, excess, lowered.loss, exact.loss, search.count)


def _noise(runs: Runs, exact: Outcome, sites: Sequence[Site], progress: Progress) -> list[Outcome]:
    """Returns outcomes in float32 whose weights are disturbed by one rounding, to one side and to the other: a choice
    between experts may change in one of them alone. Raises ValueError if the step does other things each time."""
    progress("in float32 again")
    if worst(deviations(runs.run(RunMode(), {}).outcome, exact)) > _MOST_OF_REPETITION:
        raise ValueError(
            "the step gives other values when it runs again in float32, so nothing can be told from its runs: it must "
            "do the same each time, with the batch, counters and generators of random numbers of its own set anew in it"
        )
    made = []
    for sign in (1, -1):
        progress("in float32, with weights that are disturbed by their rounding")
        made.append(runs.run(RunMode(rounded=lowest_of(sites), sign=sign), {}).outcome)
    return made


def _merged(looks: Sequence[Diagnosis]) -> Diagnosis:
    """Returns one diagnosis of several steps: the worst finding of each line, and what the last look measured."""
    last = looks[-1]
    if len(looks) == 1:
        return last
    by_line: dict[tuple[str, str, int], Finding] = {}
    for one in (finding for look in looks for finding in look.findings):
        key = (one.operation, one.file, one.line)
        if key not in by_line or one.effect > by_line[key].effect:
            by_line[key] = one
    excess: Deviations = {}
    for one_look in looks:
        for what, value in one_look.excess.items():
            excess[what] = max(excess.get(what, 0.0), value)
    findings = tuple(sorted(by_line.values(), key=lambda one: -one.effect))
    runs = sum(one_look.runs for one_look in looks)
    return Diagnosis(findings, last.rows, excess, last.loss, last.loss_in_float32, runs)
