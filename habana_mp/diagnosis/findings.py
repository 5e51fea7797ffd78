"""The findings of a diagnosis: the harmful operation, its effect, and the rule that corrects it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from habana_mp.diagnosis.outcomes import Deviations, decrease
from habana_mp.diagnosis.sites import Site
from habana_mp.ops.observed import SOLVES
from habana_mp.policy.lists import EVERY
from habana_mp.policy.precisions import FLOAT32_RESULT
from habana_mp.reporting.page import in_html, page
from habana_mp.reporting.records import LARGEST_FLOAT16, short_place
from habana_mp.reporting.remedies import Finding, in_words, rules_for

EMULATION = "torch._inductor.config.emulate_precision_casts = True"

#: The smallest and the largest number of a precision.
_RANGES = {"float16": (2.0**-24, LARGEST_FLOAT16), "bfloat16": (2.0**-133, 3.3895e38)}


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


def row_of(site: Site, *, is_unrounded: bool) -> OperationRow:
    """Returns the row of a site. ``is_unrounded``: compiled code may keep its results in float32."""
    dtype = min(site.dtypes, default="")
    smallest, largest = site.smallest_input, site.largest_input
    least, most = _RANGES["float16" if dtype == "float16" else "bfloat16"]
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
        input_range=(smallest, largest) if largest > 0 else None,
        range_left=(math.log2(smallest / least), math.log2(most / largest)) if largest > 0 else None,
        compiled="fp32" if is_unrounded else "",
    )


def finding(
    sites: Sequence[Site],
    before: Deviations,
    after: Deviations,
    step: int,
    *,
    others: str = "",
    sums: bool = False,
) -> Finding:
    """Returns the finding about the sites of one line. ``before`` and ``after`` are the deviations of the step without
    and with this line in float32, or with ``sums`` its result alone. ``others`` is "both" if the lines of the
    other findings run in float32 in both of them, and "after" if they do in the latter. If the line solves a linear
    system, its module runs in float32 as a whole."""
    kind, harm = _kind_and_harm(sites)
    solves = SOLVES.search(sites[0].where.operation)
    what = most_improved(before, after)
    given = "with the lines of the other findings in float32, " if others == "both" else ""
    lines = "this line and those of the other findings" if others else "its module" if solves else "this line"
    this = "this one too" if given else f"{'the result of ' if sums else ''}{lines} in float32"
    now = "it is" if before[what] == math.inf else f"by {percent(after[what])}"
    text = f"{harm}; {given}{what} {deviates_by('is wrong', before[what])}, and with {this} {now}"
    worst, (operation, file, line) = _worst(sites), sites[0].where
    precision = "lower" + FLOAT32_RESULT if sums else "fp32"
    rule = rules_for(EVERY if solves else operation, [one.module or None for one in sites], precision)
    return Finding(
        kind,
        worded(sites, text, rule),
        rule,
        operation=operation,
        module=worst.module,
        file=file,
        line=line,
        effect=math.inf if before[what] == math.inf > after[what] else decrease(before[what], after[what]),
        local_error=worst.local_error,
        inherited_error=worst.inherited_error,
        step=step,
    )


def worded(sites: Sequence[Site], words: str, rule: Mapping[str, str]) -> str:
    """Returns a text that begins with the place, and ends with the rule."""
    where, module = sites[0].where, _worst(sites).module
    at = f"`{where.operation}` at {where.place}" + (f" in {module}" if module else "")
    others = f" and {len(sites) - 1} more modules" if len(sites) > 1 else ""
    no_rule = f"; no list can name `{where.operation}`: run this line under `hmp.disable_casts()`"
    return f"{at}{others}: {words}{in_words(rule, '; write') or no_rule}"


def _worst(sites: Sequence[Site]) -> Site:
    return max(sites, key=lambda site: (site.not_finite_kind != "", abs(site.effect), site.error))


def most_improved(before: Deviations, after: Deviations) -> str:
    return max(before, key=lambda what: decrease(before[what], after[what]))


def _kind_and_harm(sites: Sequence[Site]) -> tuple[str, str]:
    """Returns the kind of the finding about these sites of a line, and what the line did."""
    site, lower = _worst(sites), precision_of(sites)
    if SOLVES.search(site.where.operation):
        return "precision", "it solves a system that lower precision has rounded, and multiplies the rounding"
    inputs = "of its inputs"
    if site.largest_input:
        inputs = f"of inputs from {site.smallest_input:.3g} to {site.largest_input:.3g}"
    kind = next((one.not_finite_kind for one in sites if one.not_finite_kind), "")
    if kind:
        how = f"does not fit into {lower}" if kind == "overflow" else "is not finite"
        return kind, f"{inputs} it made a value that {how}"
    values, underflows = sum(one.values for one in sites), sum(one.underflows for one in sites)
    gradients, zeros = sum(one.gradients for one in sites), sum(one.zero_gradients for one in sites)
    if underflows > 0.05 * values or zeros > 0.5 * gradients:
        more = "or got gradients that are zero"
        return "underflow", f"{inputs} it made zeros in {lower} where float32 has none, {more}"
    kind = "precision" if any(one.has_gradient for one in sites) else "decision"
    if not site.error and not site.gradient_error:
        return kind, f"{inputs} its error in {lower} shows only with the other findings in float32"
    if kind == "decision":
        error = f"largest error of {site.largest_error:.3g} in {lower}, and no gradient shows what they decide"
    else:
        more = f", and gradients with {site.gradient_error:.2g}" if site.gradient_error > site.local_error else ""
        error = f"relative error of {site.local_error:.2g} in {lower}{more}"
    return kind, f"{inputs} it made values with a {error}"


def precision_of(sites: Sequence[Site]) -> str:
    return ", ".join(sorted(_worst(sites).dtypes)) or "the lower precision"


def deviates_by(words: str, share: float, where: str = "") -> str:
    return f"is not finite{where}" if share == math.inf else f"{words} by {percent(share)}"


def percent(share: float) -> str:
    return f"{share:.2g} times its size" if share >= 10 else f"{100 * share:.3g} %"


# ---- the page --------------------------------------------------------------------------------------------------------


def html_page(headline: str, findings: Iterable[Finding], rows: Iterable[OperationRow]) -> str:
    """Returns the diagnosis as one HTML page, which loads no other file and runs no script."""
    items = "".join(map(_item_of_page, findings))
    parts = {
        "headline": in_html(headline),
        "findings": items,
        "hide_findings": "" if items else " hidden",
        "rows": "".join(map(_row_of_page, rows)),
    }
    return page("Diagnosis: operations in lower precision", Path(__file__).parent / "page.html", parts)


def _item_of_page(finding: Finding) -> str:
    rule = f"<pre><code>{in_html(f'rules={finding.rule!r}')}</code></pre>" if finding.rule else ""
    return f'<li><span class="kind">{finding.kind}</span>{in_html(finding.text)}{rule}</li>'


def _row_of_page(row: OperationRow) -> str:
    precision = f"{row.precision}, {row.compiled} in compiled code" if row.compiled else row.precision
    texts = (row.operation, row.module, row.place, precision)
    inputs = "" if row.input_range is None else "{:.3g} to {:.3g}".format(*row.input_range)
    numbers = (
        str(row.calls),
        f"{row.local_error:.2g}",
        f"{row.inherited_error:.2g}",
        "" if row.effect is None else f"{row.effect:.2g}",
        f"{row.gradient_error:.2g}" if row.gradient_error else "",
        inputs,
    )
    cells = [f"<td>{in_html(one)}</td>" for one in texts] + [f'<td class="number">{one}</td>' for one in numbers]
    return f"<tr>{''.join(cells)}</tr>"
