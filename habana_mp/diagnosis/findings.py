"""The findings of a diagnosis: the harmful operation, its effect, and the rule that corrects it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from habana_mp.diagnosis.outcomes import Deviations, decrease
from habana_mp.diagnosis.sites import Site
from habana_mp.policy.precisions import FLOAT32_RESULT
from habana_mp.reporting.records import LARGEST_FLOAT16, Row, short_place
from habana_mp.reporting.remedies import in_words, rules_for

Kind = Literal["precision", "overflow", "underflow", "not finite", "decision", "compiled"]

EMULATION = "torch._inductor.config.emulate_precision_casts = True"

_SMALLEST_FLOAT16 = 2.0**-24
_LARGEST_BFLOAT16 = 3.3895e38
_SMALLEST_BFLOAT16 = 2.0**-133


@dataclass(frozen=True)
class OperationRow:
    """An operation at one line in one module, and its measurements."""

    operation: str
    module: str
    file: str
    line: int
    precision: str
    calls: int
    #: The error of the calls themselves, and the error of their inputs, relative to the exact values.
    local_error: float
    inherited_error: float
    #: The local error times the gradient of the loss. This is the amount by which the calls change the loss. None if
    #: the results got no gradient.
    effect: float | None
    #: The relative error that the backward of the calls adds. Only the first call of each line is examined.
    gradient_error: float
    largest_error: float
    #: The smallest and the largest magnitude of the inputs, without zeros; None if all are zero.
    input_range: tuple[float, float] | None
    #: The distance to the ends of the lower precision's range, in powers of two: below the smallest input, and above
    #: the largest.
    range_left: tuple[float, float] | None
    #: "fp32" if compiled code may keep the results in float32; otherwise empty.
    compiled: str = ""

    @property
    def place(self) -> str:
        return short_place(self.file, self.line)


@dataclass(frozen=True)
class Finding:
    """An operation whose lower precision harms the step."""

    operation: str
    module: str
    file: str
    line: int
    kind: Kind
    #: The decrease of the step's deviation from float32 if only this operation runs in float32, as a share of the exact
    #: value that improves most. Infinite if that value is finite only in this case.
    effect: float
    local_error: float
    inherited_error: float
    text: str
    #: The rules to give to ``convert(rules=...)``; empty if no rule would help.
    rule: dict[str, str] = field(hash=False)
    #: The number of the step in which it was found, counted from 0.
    step: int = 0
    #: The ranks on which it was found, if the diagnosis is of all ranks.
    ranks: tuple[int, ...] = ()

    @property
    def place(self) -> str:
        return short_place(self.file, self.line)

    def __str__(self) -> str:
        return self.text


def row_of(site: Site, *, is_unrounded: bool) -> OperationRow:
    """Returns the row of a site. ``is_unrounded``: compiled code may keep its results in float32."""
    dtype = next(iter(sorted(site.dtypes)), "")
    has_range = site.largest_input > 0
    return OperationRow(
        operation=site.where.operation,
        module=site.module,
        file=site.where.file,
        line=site.where.line,
        precision={"bfloat16": "bf16", "float16": "fp16"}.get(dtype, dtype),
        calls=site.calls,
        local_error=site.local_error,
        inherited_error=site.inherited_error,
        effect=site.effect if site.has_gradient else None,
        gradient_error=site.gradient_error,
        largest_error=site.largest_error,
        input_range=(site.smallest_input, site.largest_input) if has_range else None,
        range_left=_range_left(site, dtype) if has_range else None,
        compiled="fp32" if is_unrounded else "",
    )


def _range_left(site: Site, dtype: str) -> tuple[float, float]:
    is_half = dtype == "float16"
    smallest, largest = (_SMALLEST_FLOAT16, LARGEST_FLOAT16) if is_half else (_SMALLEST_BFLOAT16, _LARGEST_BFLOAT16)
    return math.log2(site.smallest_input / smallest), math.log2(largest / site.largest_input)


def kind_of(sites: Sequence[Site]) -> Kind:
    for site in sites:
        if site.birth == "overflow":
            return "overflow"
        if site.birth:
            return "not finite"
    values = sum(site.values for site in sites)
    if values and sum(site.underflows for site in sites) > 0.05 * values:
        return "underflow"
    gradients = sum(site.gradients for site in sites)
    if gradients and sum(site.zero_gradients for site in sites) > 0.5 * gradients:
        return "underflow"
    return "precision" if any(site.has_gradient for site in sites) else "decision"


def finding(
    sites: Sequence[Site],
    before: Deviations,
    after: Deviations,
    step: int,
    *,
    is_one_of: bool = False,
    sums: bool = False,
) -> Finding:
    """Returns the finding about the sites of one line. ``before`` and ``after`` are the deviations of the step without
    and with this line in float32, or with ``sums`` its result alone. If ``is_one_of`` is true, the lines of other
    findings run in float32 in both."""
    worst = max(sites, key=lambda site: (site.birth != "", abs(site.effect), site.error))
    kind = kind_of(sites)
    improved = max(before, key=lambda what: decrease(before[what], after[what]), default="")
    effect = decrease(before[improved], after[improved]) if improved else 0.0
    if improved and before[improved] == math.inf > after[improved]:
        effect = math.inf
    rule = rules_for(_rows(sites), "lower" + FLOAT32_RESULT if sums else "fp32")
    this = "the result of this line" if sums else "this line"
    consequence = _consequence(improved, before, after, this, is_one_of=is_one_of)
    text = f"{_where(worst, sites)}: {_what(kind, worst)}{consequence}{in_words(rule, '; write') or _no_rule(worst)}"
    return Finding(
        operation=worst.where.operation,
        module=worst.module,
        file=worst.where.file,
        line=worst.where.line,
        kind=kind,
        effect=effect,
        local_error=worst.local_error,
        inherited_error=worst.inherited_error,
        text=text,
        rule=rule,
        step=step,
    )


def compiled_finding(
    sites: Sequence[Site],
    before: Deviations,
    after: Deviations,
    step: int,
    from_exact: tuple[Deviations, Deviations],
    changed: str,
    *,
    is_unrounded: bool,
    rounding_mends: bool,
) -> Finding:
    """Returns the finding about a line that compiled code computes in another precision than eager code. ``before`` and
    ``after`` are the deviations of compiled code from eager code without and with the change ``changed``.
    ``from_exact``: the deviations of compiled code and of eager code from float32."""
    found = finding(sites, before, after, step)
    worst = next(one for one in sites if one.module == found.module)
    precision = ", ".join(sorted(worst.dtypes)) or "the lower precision"
    how = "keeps its result in float32" if is_unrounded else "computes it in another way"
    what = max(before, key=lambda one: decrease(before[one], after[one]))
    differs = _by("differs between them", before[what], " in one of them")
    it_differs = " it differs" if before[what] == math.inf else ""
    of_compiled, of_eager = (_by("deviates", one[what]) for one in from_exact)
    rule = rules_for(_rows(sites), "fp32")
    text = (
        f"{_where(worst, sites)}: compiled code {how}, and eager code rounds it to {precision}; {what} {differs}, "
        f"and {changed}{it_differs} by {_percent(after[what])}; from float32, compiled code {of_compiled}, and eager "
        f"code {of_eager}"
        f"{in_words(rule, '; write') or _no_rule(worst)}"
        f"{f', or set `{EMULATION}` to round as eager code does' if rounding_mends else ''}"
    )
    return replace(found, kind="compiled", text=text, rule=rule)


def _rows(sites: Sequence[Site]) -> list[Row]:
    return [
        Row(site.where.operation, "bf16", site.calls, 0, 0, module=site.module or None, file=site.where.file,
            line=site.where.line)
        for site in sites
    ]  # fmt: skip


def _where(worst: Site, sites: Sequence[Site]) -> str:
    module = f" in {worst.module}" if worst.module else ""
    more = f" and {len(sites) - 1} more modules" if len(sites) > 1 else ""
    return f"`{worst.where.operation}` at {worst.where.place}{module}{more}"


def _what(kind: Kind, site: Site) -> str:
    precision = ", ".join(sorted(site.dtypes)) or "the lower precision"
    inputs = (
        f"inputs from {site.smallest_input:.3g} to {site.largest_input:.3g}" if site.largest_input else "its inputs"
    )
    if kind == "overflow":
        return f"of {inputs} it made a value that does not fit into {precision}"
    if kind == "not finite":
        return f"of {inputs} it made a value that is not finite"
    if kind == "underflow":
        return f"of {inputs} it made zeros in {precision} where float32 has none, or got gradients that are zero"
    if kind in ("decision", "precision") and not site.error and not site.gradient_error:
        return f"of {inputs} its error in {precision} shows only with the other findings in float32"
    if kind == "decision":
        return (
            f"of {inputs} it made values with a largest error of {site.largest_error:.3g} in {precision}, and no "
            f"gradient shows what they decide"
        )
    return f"of {inputs} it made values with a relative error of {site.local_error:.2g} in {precision}" + (
        f", and gradients with {site.gradient_error:.2g}" if site.gradient_error > site.local_error else ""
    )


def _consequence(what: str, before: Deviations, after: Deviations, this: str, *, is_one_of: bool) -> str:
    if not what:
        return ""
    others = "with the lines of the other findings in float32, " if is_one_of else ""
    too = "this one too" if is_one_of else f"{this} in float32"
    if before[what] == math.inf:
        return f"; {others}{what} is not finite, and with {too} it is"
    return f"; {others}{what} is wrong by {_percent(before[what])}, and with {too} by {_percent(after[what])}"


def _by(words: str, share: float, where: str = "") -> str:
    return f"is not finite{where}" if share == math.inf else f"{words} by {_percent(share)}"


def _percent(share: float) -> str:
    return f"{share:.2g} times its size" if share >= 10 else f"{100 * share:.3g} %"


def _no_rule(site: Site) -> str:
    return f"; no list can name `{site.where.operation}`: run this line under `hmp.disable_casts()`"
