"""The diagnosis of a step: finds the operations that are harmful in lower precision.

The step runs in float32, then in mixed precision, where each lowered operation is also computed in float32. If the step
deviates by more than is allowed, it runs again for each suspected operation, with this operation in float32.
If this removes the deviation, the operation is harmful.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from habana_mp.common.blocks import ProcessBlock
from habana_mp.diagnosis.findings import EMULATION, OperationRow, html_page, row_of
from habana_mp.diagnosis.outcomes import Deviations, Run, RunMode, Tolerances, deviations, worst
from habana_mp.diagnosis.replays import Replays, RunsHere, Step
from habana_mp.diagnosis.search import CompiledSearch, Progress, Runs, Search, lowest_of
from habana_mp.diagnosis.sites import PRODUCTS, Site
from habana_mp.patches.installation import installation
from habana_mp.patches.tools.compiled_functions import EagerMode
from habana_mp.reporting.ranks import gathered, own_rank
from habana_mp.reporting.records import with_ranks
from habana_mp.reporting.remedies import Finding

FORMAT, VERSION = "habana-mp diagnosis", 1
_FIELDS = (
    *("operation", "module", "file", "line", "kind", "effect", "local_error", "inherited_error"),
    *("text", "rule", "step", "ranks"),
)

#: Two runs in float32 may differ by this much, since some operations sum in another order each time.
_MOST_OF_REPETITION = 0.01


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The result of :func:`diagnose`."""

    #: The harmful operations, the worst first.
    findings: tuple[Finding, ...]
    #: All operations that ran in lower precision. Those with the largest effect on the loss come first.
    rows: tuple[OperationRow, ...]
    #: For each compared value, its deviation from float32 as a multiple of the allowed deviation. It is infinite if the
    #: value is not finite.
    excess: dict[str, float] = field(hash=False)
    loss: float | None = None
    loss_in_float32: float | None = None
    #: The number of runs of the step with one line in float32.
    runs: int = 0
    #: For each compared value, the deviation of compiled code from eager code as a multiple of the allowed deviation.
    #: Empty if the step calls no compiled function.
    compiled_excess: dict[str, float] = field(default_factory=dict, hash=False)
    #: True if compiled code deviates from eager code only because it leaves out roundings.
    rounding_mends: bool = False

    @property
    def healthy(self) -> bool:
        """True if nothing deviates by more than is allowed."""
        return bool(self.excess) and not self.findings and worst(self.excess) <= 1 and worst(self.compiled_excess) <= 1

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
        fails = ""
        if self.loss_in_float32 is not None and not math.isfinite(self.loss_in_float32):
            fails = "The loss is not finite in float32 either: the script fails without this package. "
        return fails + self._result + self._of_compiled

    @property
    def _result(self) -> str:
        if not self.rows:
            return "Nothing ran in lower precision."
        harmful = [one for one in self.findings if one.kind != "compiled"]
        if harmful:
            many = "One operation is" if len(harmful) == 1 else f"{len(harmful)} operations are"
            worst_first = "" if len(harmful) == 1 else ", the worst first"
            result = f"{many} harmful in lower precision{worst_first}."
        elif worst(self.excess) <= 1:
            healthy = "Healthy: the step" if worst(self.compiled_excess) <= 1 else "Eager code is healthy: it"
            result = f"{healthy} deviates from float32 by no more than is allowed."
        else:
            result = f"No single operation was found to be harmful, but {_worst_of(self.excess, 'from float32')}."
        if self.loss is None or self.loss_in_float32 is None:
            return result
        return f"{result} The loss is {self.loss:.6g}, in float32 {self.loss_in_float32:.6g}."

    @property
    def _of_compiled(self) -> str:
        """The result about compiled code in a sentence, or an empty text."""
        if not self.compiled_excess:
            return ""
        if worst(self.compiled_excess) <= 1:
            return " Compiled code deviates from eager code by no more than is allowed."
        or_in_eager = " or in eager code" if worst(self.compiled_excess) == math.inf else ""
        text = f" In compiled code{or_in_eager}, {_worst_of(self.compiled_excess, 'from eager code')}"
        if any(one.kind == "compiled" for one in self.findings):
            return f"{text}."
        mends = f", but with `{EMULATION}` it agrees" if self.rounding_mends else ""
        return f"{text}, and no single operation explains it{mends}."

    def __repr__(self) -> str:
        return f"<Diagnosis with {len(self.findings)} findings; print() shows them>"

    def to_dict(self) -> dict[str, Any]:
        """Returns all data as numbers, texts, lists and dicts. Numbers that are not finite become None."""
        data = {
            "format": FORMAT,
            "version": VERSION,
            "headline": self.headline,
            "healthy": self.healthy,
            "loss": self.loss,
            "loss_in_float32": self.loss_in_float32,
            "runs": self.runs,
            "compiled_excess": self.compiled_excess,
            "rounding_mends": self.rounding_mends,
            "excess": self.excess,
            "findings": [one.to_dict(*_FIELDS) for one in self.findings],
            "rows": [asdict(one) for one in self.rows],
        }
        return json.loads(json.dumps(data), parse_constant=lambda _: None)  # type: ignore[no-any-return]  # a dict

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Writes all data as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", "utf-8")

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Writes a page with the findings and all operations, which loads no other file."""
        Path(path).write_text(html_page(self.headline, self.findings, self.rows), "utf-8")


def _worst_of(excess: Deviations, origin: str) -> str:
    what = max(excess, key=lambda one: excess[one])
    if excess[what] == math.inf:
        return f"{what} is not finite"
    return f"{what} deviates {origin} by {excess[what]:.3g} times what is allowed"


def diagnose(step: Step, *, steps: int = 1, every: int = 1, ranks: bool = False) -> Diagnosis:
    """Finds the operations whose lower precision harms a step, and the rules that correct this.

    ``step()`` runs the forward and returns the loss. If it does not run the backward, this function does. ``step()`` is
    called several times and must do the same each time, so get the batch outside of it. It ends where an optimizer's
    step begins. Afterwards gradients, buffers, random numbers, weights and the report are as before. If the step calls
    functions that torch.compile compiled, it also finds where these and eager code use different precisions.

    Args:
        step: A function without parameters. The other values that it returns are compared too.
        steps: The number of steps. With more than one, ``step()`` also runs normally each time, so that the model
            continues to train if it runs an optimizer.
        every: Examines the first step, and then one step out of this many.
        ranks: True for one diagnosis of all ranks of torch.distributed. All must call it, and all return it. How often
            the step runs depends on what a rank finds. DistributedDataParallel does not communicate meanwhile, and the
            step must not do so in other ways.

    Raises:
        ValueError: ``step`` does other things when it is called again, or a number is below 1.
        TypeError: ``step`` cannot be called.
    """
    if not callable(step) or isinstance(step, torch.nn.Module):
        raise TypeError(
            "`step` must be a function that runs a step and returns its loss, as `hmp.diagnose(lambda: "
            f"criterion(model(inputs), targets))`; got {type(step).__name__}"
        )
    for name, value in (("steps", steps), ("every", every)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"`{name}` must be a whole number of at least 1; got {value!r}")
    looks = []
    with diagnosed_process:
        for number in range(steps):
            if number % every == 0:
                replays = Replays(step)
                prefix = f"step {number + 1} of {steps}: " if steps > 1 else ""
                with ProgressLine(prefix) as progress, replays.from_same_state():
                    progress("to find what it uses")
                    runs = RunsHere(replays)
                    runs.find_state()
                    looks.append(look(runs, number, progress))
            if steps > 1:
                step()
    found = _merged(looks)
    return found if not ranks or own_rank() is None else _of_ranks(gathered(found))


class _DiagnosedProcess(ProcessBlock):
    """A block in which observers see all operations, including those without a rule and those of compiled code."""

    _eager = EagerMode()

    def settle(self) -> None:
        (self._eager.begin if self.entrances else self._eager.end)()
        installation.set_observer("diagnosis", self, is_on=bool(self.entrances))


diagnosed_process = _DiagnosedProcess()


class ProgressLine:
    """A line on the terminal that describes the current run. Nothing is written to a file or a pipe."""

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
    exact = runs.run(RunMode())
    progress("as it is, beside float32")
    lowered = runs.run(RunMode(beside=exact.samples))
    exact.samples.clear()
    sites = lowered.sites
    compiled, of_compiled = lowered, {}
    if runs.compiles and sites:
        progress("compiled")
        compiled = runs.run(RunMode(compiled=True, lines=frozenset()))
        if lowered.has_finite_loss or compiled.has_finite_loss:
            of_compiled = deviations(compiled, lowered)
    ordered = sorted(sites, key=lambda one: -abs(one.effect))
    rows = tuple(row_of(one, is_unrounded=compiled.leaves_unrounded(one)) for one in ordered)
    found, tolerances = deviations(lowered, exact), Tolerances()
    if max(worst(tolerances.excess(found)), worst(tolerances.excess(of_compiled))) > 1 and exact.has_finite_loss:
        tolerances = Tolerances(_noise(runs, exact, sites, progress))
    excess, compiled_excess = tolerances.excess(found), tolerances.excess(of_compiled)
    findings: list[Finding] = []
    search = Search(runs, exact, tolerances, found)
    if worst(excess) > 1:
        findings += search.in_modules(search.findings(sites, number, progress), lowered, number, progress)
    beside = CompiledSearch(runs, compiled, lowered, exact, tolerances)
    if worst(compiled_excess) > 1:
        findings += beside.findings(sites, number, progress)
    return Diagnosis(
        tuple(findings),
        rows,
        excess,
        lowered.loss,
        exact.loss,
        search.run_count + beside.run_count,
        compiled_excess,
        beside.rounding_mends,
    )


def _noise(runs: Runs, exact: Run, sites: Sequence[Site], progress: Progress) -> list[Deviations]:
    """Returns the deviations in float32 if the lowered weights are disturbed by one rounding. One run adds the rounding
    errors and the other subtracts them, since a choice between experts may change in only one of the two. Raises
    ValueError if the step does other things each time.
    """
    progress("in float32 again")
    if worst(deviations(runs.run(RunMode()), exact)) > _MOST_OF_REPETITION:
        raise ValueError(
            "the step gives other values when it runs again in float32, so nothing can be told from its runs: "
            f"{runs.advice}"
        )
    made = []
    products = frozenset(one.where for one in sites if one.values and one.where.operation in PRODUCTS)
    for sign in (1, -1):
        progress("in float32, with weights that are disturbed by their rounding")
        made.append(deviations(runs.run(RunMode(disturbed=products, sign=sign, lower=lowest_of(sites))), exact))
    return made


def _of_ranks(found: Sequence[Diagnosis]) -> Diagnosis:
    """Returns one diagnosis of several ranks: the worst finding of each line, with its ranks, and the largest
    measurements of each operation."""
    ranks: dict[tuple[str, str, int], list[int]] = {}
    rows: dict[tuple[str, str, str, int], OperationRow] = {}
    for rank, one in enumerate(found):
        for finding in one.findings:
            ranks.setdefault((finding.operation, finding.file, finding.line), []).append(rank)
        for row in one.rows:
            key = (row.operation, row.module, row.file, row.line)
            rows[key] = max(rows.get(key, row), row, key=lambda either: abs(either.effect or 0.0))
    whole = _merged(found)
    of = {one: tuple(ranks[one.operation, one.file, one.line]) for one in whole.findings}
    findings = tuple(replace(one, text=with_ranks(one.text, of[one]), ranks=of[one]) for one in whole.findings)
    return replace(whole, findings=findings, rows=tuple(rows.values()), loss=None, loss_in_float32=None)


def _merged(looks: Sequence[Diagnosis]) -> Diagnosis:
    """Returns one diagnosis of several steps: the worst finding of each line, and the measurements of the last step."""
    last = looks[-1]
    if len(looks) == 1:
        return last
    by_line: dict[tuple[str, str, int, bool], Finding] = {}
    for one in (finding for look in looks for finding in look.findings):
        key = (one.operation, one.file, one.line, one.kind == "compiled")
        if key not in by_line or one.effect > by_line[key].effect:
            by_line[key] = one
    excess: Deviations = {}
    compiled_excess: Deviations = {}
    for one_look in looks:
        for merged, its in (excess, one_look.excess), (compiled_excess, one_look.compiled_excess):
            merged.update({what: max(merged.get(what, 0.0), value) for what, value in its.items()})
    findings = tuple(sorted(by_line.values(), key=lambda one: -one.effect))
    runs = sum(one_look.runs for one_look in looks)
    mends = any(one_look.rounding_mends for one_look in looks)
    return Diagnosis(findings, last.rows, excess, last.loss, last.loss_in_float32, runs, compiled_excess, mends)
