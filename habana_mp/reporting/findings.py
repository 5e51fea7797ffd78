"""The words of a report: how much ran in lower precision, what did not and why, and what is worth a look."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from habana_mp import _core, ops
from habana_mp.policy.module_rules import KEPT
from habana_mp.reporting.records import PRECISIONS, REASONS, Edge, Records, Row, with_ranks
from habana_mp.reporting.remedies import in_words, rules_for

#: The most lines, the most lines of one kind, and the most operations in the line about float32.
_MOST_LINES, _MOST_OF_A_KIND, _MOST_LEFT = 10, 2, 3

#: The least number of calls whose times tell something: first calls take longer.
_MANY_CALLS = 10

#: Advice that makes results less exact must save at least this share of all time.
_LEAST_SHARE = 0.01

#: Products that are too small are a finding if they take at least this share of all time.
_LEAST_SHARE_OF_SMALL = 0.05

#: A product that takes fewer seconds may be too small to gain from a lower precision.
_SHORT = 100e-6

#: In bfloat16 the error of a larger angle is more than a sixteenth of a radian.
_LARGEST_ANGLE = 32.0

_LOSSES = frozenset(name for row in ops.losses.ROWS for name in row.names.split())


@dataclass(frozen=True)
class Finding:
    """Something worth a look: the indices of its rows in the report, and its text."""

    kind: str
    rows: tuple[int, ...]
    text: str
    #: Seconds of casts that the advice would save, if known.
    saves: float | None = None
    #: The lines that mend it, as ``rules=`` of ``convert`` takes them; empty if lines cannot.
    rule: Mapping[str, str] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rows": list(self.rows)}


def findings_of(report: Records) -> tuple[Finding, ...]:
    """Returns all findings: the most unusual kinds first, and the most expensive finding of each kind first."""
    sources = _sources(report)
    whole, _ = report.size
    found: list[Finding] = []
    for kind in _KINDS:
        numbers = [number for number, row in enumerate(report.rows) if kind.applies(row)]
        if kind.more_than_steps:
            numbers = [one for one in numbers if report.rows[one].calls > report.environment.get("optimizer_steps", 0)]
        for together in _by_line(report, numbers):
            rows = [report.rows[number] for number in together]
            if _size(report, rows)[0] < kind.least_share * whole:
                continue
            text = kind.words.format(
                named=_named(rows),
                why=rows[0].why,
                listed=_because(rows[0]) + _given_by(report, sources, together),
                calls=_weight(report, rows),
                precision=rows[0].precision,
                lower=_lower(report, rows[0]),
                refused=", ".join(dict.fromkeys(reason for row in rows for reason in row.refused)),
                **_of_values(report, sources, together),
            )
            rule = _rule_of(report, sources, kind, together)
            text = _core.printable(text + in_words(rule))
            found.append(Finding(kind.name, tuple(together), text, rule=rule))
    return (
        *_lower_weights(report),
        *_lower_losses(report),
        *_rounded_differences(report, sources),
        *_averages(report, sources),
        *found,
        *_rounded_probabilities(report, sources),
        *_ping_pongs(report, sources),
    )


def first_lines(report: Records, findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """Returns the first lines of a report."""
    if not report.rows:
        return (_why_nothing_was_called(report),)
    lines = [
        *_off_for_no_device(report),
        _share(report, findings),
        *(f"The guard: {with_ranks(text, ranks)}" for text, ranks in report.guarded.items()),
        *_outside(report),
        *_off(report),
        *_in_float32(report, findings),
        *_dearest_casts(report),
    ]
    shown = _chosen(findings, _MOST_LINES - len(lines))
    hidden = Counter(one.kind for one in findings) - Counter(one.kind for one in shown)
    last = {one.kind: number for number, one in enumerate(shown)}
    for number, one in enumerate(shown):
        more = hidden[one.kind] if last[one.kind] == number else 0
        lines.append(one.text + (f" ({_count(more, 'more place')} like it)" if more else ""))
    return tuple(map(_core.printable, lines))


def _chosen(findings: Iterable[Finding], most: int) -> list[Finding]:
    """Returns one finding of each kind, then a second one, in their order. So no kind is crowded out."""
    turns: Counter[str] = Counter()
    ranked = []
    for number, one in enumerate(findings):
        if turns[one.kind] < _MOST_OF_A_KIND:
            ranked.append((turns[one.kind], number, one))
        turns[one.kind] += 1
    return [one for _, _, one in sorted(sorted(ranked)[:most], key=lambda item: item[1])]


# ---- how much -------------------------------------------------------------------------------------------------------


def _share(report: Records, findings: tuple[Finding, ...]) -> str:
    """Returns the line about products, and about the share of each precision: of the time, or of the calls if no time
    was taken. Steps of optimizers are no part of it."""
    rows = report.main_rows
    if not any(row.is_lower for row in rows):
        return f"Nothing ran in lower precision{_why_nothing_ran_lower(report, findings)}"
    whole, of_time = _size(report, rows)
    products = _of_products(report, rows)
    if products and not of_time and _is_compiled(report):  # most calls are those of the compiler
        return f"{products.rstrip('. ')}{_COMPILED}"
    parts = []
    for precision in sorted({row.precision for row in rows}, key=PRECISIONS.index):
        share = _percent(_share_of(_size(report, [row for row in rows if row.precision == precision])[0], whole))
        parts.append(f"{_SUBJECTS.get(precision, precision)} {share}")
    first, _, rest = parts[0].partition(" ")
    counted = "calls that a list or a rule decides" if report.detail == "operations" else "calls"
    verb, what = ("took", "operations' time") if of_time else ("had", counted)
    others = f", {', '.join(parts[1:])}" if parts[1:] else ""
    time = f", {_time(whole)}" if of_time else ""
    steps = sum(row.calls for row in report.rows) - sum(row.calls for row in rows)
    left_out = f"; not counted: {_count(steps, 'call')} in optimizers' steps" if steps else ""
    return (
        f"{products}{first} {verb} {rest} of the {what}{others} ({_calls(rows)}{time}{left_out})"
        f"{_COMPILED if _is_compiled(report) else ''}"
    )


#: The end of the first line where torch.compile is at work.
_COMPILED = ". Compiled code is counted while it is traced, not when it runs"


def _of_products(report: Records, rows: list[Row]) -> str:
    """Returns the sentence about products, or an empty text if there were none."""
    products = [row for row in rows if _is_product(row)]
    lower = [row for row in products if row.is_lower]
    many, most = sum(row.calls for row in products), sum(row.calls for row in lower)
    precisions = {row.precision for row in lower}
    where = f"in {precisions.pop()}" if len(precisions) == 1 else "in lower precision"
    with_sums = sum(row.calls for row in lower if row.reason == "float32_result")
    if with_sums:
        where += f", {'' if with_sums == most else f'{with_sums:,} of them '}with a float32 result"
    if not products:
        return ""
    if most == many:
        return f"{'The' if many == 1 else f'All {many:,}'} product{'' if many == 1 else 's'} ran {where}. "
    whole, of_time = _size(report, products)
    time = f", {_percent(_share_of(_size(report, lower)[0], whole))} of their time" if of_time and lower else ""
    return f"{f'{most:,}' if most else 'None'} of {_count(many, 'product')} ran {where}{time}. "


_SUBJECTS = {"unchanged": "calls left alone"}


def _size(report: Records, rows: Iterable[Row]) -> tuple[float, bool]:
    """Returns the size of the rows, as that of the whole report: their time and True, or their calls and False."""
    _, of_time = report.size
    return (_seconds(rows) if of_time else float(sum(row.calls for row in rows))), of_time


def _seconds(rows: Iterable[Row]) -> float:
    return sum(row.seconds or 0.0 for row in rows)


def _is_compiled(report: Records) -> bool:
    return bool(report.environment.get("compiled_graphs")) or any(row.phase == "traced" for row in report.rows)


def _is_off(reason: str) -> bool:
    """True if casts are off for all calls with this reason."""
    return reason in REASONS and REASONS[reason].casts_off


def _why_nothing_was_called(report: Records) -> str:
    if _is_compiled(report) or report.environment.get("compiled_before"):
        return f"No call was counted{_COMPILED}"
    if report.configuration is None:
        return "Nothing ran in lower precision: hmp.convert() was not called in this process, before the model runs"
    if report.configuration.get("opt_level") == "O0":
        return 'Nothing ran in lower precision: opt_level="O0" casts nothing'
    within = report.configuration.get("within")
    if within is not None:
        where = "a module" if within == "modules" else "the modules that convert was given"
        return f"Nothing ran in lower precision: no operation was called in {where}, and the lists lower only there"
    return "Nothing ran in lower precision: no covered operation was called where casts are on"


def _why_nothing_ran_lower(report: Records, findings: tuple[Finding, ...]) -> str:
    """Returns the reason of most calls, or an empty text if a finding says the same."""
    if report.configuration is None:
        return ": not converted now"
    if report.configuration.get("opt_level") == "O0":
        return ': opt_level="O0" casts nothing'
    by_reason = Counter[str]()
    for row in report.main_rows:
        by_reason[row.reason] += row.calls
    ((reason, calls),) = by_reason.most_common(1)
    rows = [row for row in report.rows if row.reason == reason]
    within = report.configuration.get("within")
    is_known = report.detail != "operations"
    if within is not None and all(row.reason == "outside" or (is_known and row.module is None) for row in report.rows):
        return ": no module ran, and the lists lower only in one"
    if _is_off(reason) or any(report.rows[number] in rows for one in findings for number in one.rows):
        return ""
    how = "left alone" if rows[0].precision == "unchanged" else f"in {rows[0].precision}"
    return f": {_count(calls, 'call')} {how}{_at(rows)} ({_because(rows[0])})"


def _off_for_no_device(report: Records) -> Iterator[str]:
    """Yields a line about regions that switch casts off for a device that is not here."""
    places: Mapping[str, str] = report.environment.get("disabled_for_no_device") or {}
    if not any(row.reason == "autocast_off" for row in report.rows):
        return
    for place, device in list(places.items())[:1]:
        more = f" (and {_count(len(places) - 1, 'more place')} like it)" if len(places) > 1 else ""
        yield (
            f"Casts are off in the disabled region of torch.autocast for {device} at {place}{more}, though no {device} "
            "is here: if the script was written for another device, remove the region, or run it with `--gaudi`"
        )


def _outside(report: Records) -> Iterator[str]:
    """Yields a line about the products that ran in float32 outside of modules."""
    rows = [row for row in report.rows if row.reason == "outside" and row.precision == "fp32"]
    if rows:
        named = ", ".join(dict.fromkeys(f"`{row.operation}`" for row in rows[:3]))
        yield (
            f"{_count(sum(row.calls for row in rows), 'product')} outside of modules ran in float32 ({named}"
            f"{_at(rows, ', most at ', with_modules=False)}): `with hmp.autocast(...):` lowers there, and "
            '`convert(within="everywhere")` everywhere'
        )


def _off(report: Records) -> Iterator[str]:
    """Yields a line about the calls that ran with casts off."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in report.main_rows:
        if _is_off(row.reason):
            groups[row.why].append(row)
    if not groups:
        return
    rows = [row for group in groups.values() for row in group]
    size, of_time = _size(report, rows)
    ranked = sorted(groups.items(), key=lambda item: -_size(report, item[1])[0])
    parts = [
        f"{why} {sum(row.calls for row in group):,}{_at(group, ', most at ', with_modules=False)}"
        for why, group in ranked[:2]
    ]
    yield f"Casts were off in {_calls(rows)}{f' ({_time(size)})' if of_time else ''}: {'; '.join(parts)}"


def _in_float32(report: Records, findings: tuple[Finding, ...]) -> Iterator[str]:
    """Yields a line about the largest shares in float32 that are in no finding."""
    found = {number for finding in findings for number in finding.rows}
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for number, row in enumerate(report.rows):
        if row.precision == "fp32" and number not in found and row.reason != "outside":
            # Outside of modules, one line may be a whole step of an optimizer.
            is_line = row.place and not row.module
            groups[("line", row.place) if is_line else (row.operation, _because(row))].append(row)
    whole, of_time = report.size
    if not of_time and _is_compiled(report):
        return
    parts: list[str] = []
    for rows in sorted(groups.values(), key=lambda group: -_size(report, group)[0]):
        share = _share_of(_size(report, rows)[0], whole)
        if share >= 0.01 and len(parts) < _MOST_LEFT:
            parts.append(_part_in_float32(rows, _percent(share)))
    if parts:
        yield f"In float32: {'; '.join(parts)}"


def _part_in_float32(rows: list[Row], share: str) -> str:
    names = list(dict.fromkeys(row.operation for row in rows))
    if len(names) == 1:
        return f"{names[0]}{_backward(rows[0])} {share} ({_because(rows[0])}{_at(rows, ', ', with_modules=False)})"
    named = ", ".join((*names[:3], "...") if len(names) > 3 else names)
    return f"{_count(len(names), 'operation')} of {rows[0].place} {share} ({named})"


def _because(row: Row) -> str:
    if row.rule == KEPT.source:
        return f"kept by {row.rule}"
    if row.is_listed and row.rule is not None:
        return f"listed at {row.rule}"
    return row.why if row.rule is None or not row.rule.startswith("rule") else f"{row.why}, {row.rule}"


def _dearest_casts(report: Records) -> Iterator[str]:
    """Yields a line about the time of casts, and the row with the most of it."""
    rows = report.main_rows
    time, casting = _seconds(rows), sum(row.cast_seconds or 0.0 for row in rows)
    if not time or not casting or any(row.phase == "traced" for row in rows):
        return
    casts = f"Casts took {_percent(casting / time)} of the time ({_count(sum(row.casts for row in rows), 'cast')})"
    if casting < 0.01 * time:
        yield casts
        return
    row = max(rows, key=lambda one: one.cast_seconds or 0.0)
    share = (row.cast_seconds or 0.0) / casting
    yield (
        f"{casts}. {_percent(share)} of that is {_named([row])}: {_time(row.cast_seconds or 0.0)}, "
        f"{_count(row.casts, 'cast')}, {_bytes(row.bytes)}"
    )


# ---- what is unusual ------------------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """A kind of finding: the condition on its rows, and its text."""

    name: str
    applies: Callable[[Row], bool]
    words: str
    #: The share of all time that its rows must take at least.
    least_share: float = 0.0
    #: The precision in which its operations would be right, if a line of a list can give them that.
    mended_by: str = ""
    #: True if only rows with more calls than optimizers took steps count: a trained weight is cast for each step.
    more_than_steps: bool = False
    #: True if the operation that made its input is to get that precision: its input is rounded already.
    mends_maker: bool = False


def _is_product(row: Row) -> bool:
    known = ops.row_of(row.operation)
    made = known.is_product or known.made_of_products or known.products_inside or known.o2 == "lower"
    return made or row.operation == "scaled_dot_product_attention"


def _by_reason(finding: str) -> Callable[[Row], bool]:
    """Returns the condition that a row's reason is one of those that make this kind of finding."""
    reasons = {word for word, reason in REASONS.items() if reason.finding == finding}
    return lambda row: row.reason in reasons


def _has_no_kernel(row: Row) -> bool:
    return row.reason == "no_kernel" and row.precision == "fp32" and row.operation not in _LOSSES


def _is_own_choice(row: Row) -> bool:
    """True if a line that the user wrote decides. No finding advises against it."""
    return row.is_own and row.is_listed


def _may_be_lowered(row: Row) -> bool:
    """True if a finding may advise to lower it: a product, or what stands between lowered calls, in the forward of a
    module. Outside of one, in a backward and in exact code, float32 may be meant."""
    in_forward = row.module is not None and row.phase == "forward"
    return in_forward and row.reason != "library" and not _is_own_choice(row)


def _is_product_in_float32(row: Row) -> bool:
    is_in_float32 = row.precision == "fp32" and row.reason not in ("no_kernel", "no_product")
    return is_in_float32 and _is_product(row) and _may_be_lowered(row)


def _is_loss_in_lower(row: Row) -> bool:
    return row.is_lower and row.operation in _LOSSES and not row.is_listed


def _casts_weight_anew(row: Row) -> bool:
    """True if most calls cast their weight. At most one cast per call is of the input; the others are of the weight or
    the bias, whose casts may be small ones. In few calls, each may be the first one with its weight."""
    takes_one_input = row.operation == "linear" or row.operation.startswith("conv")
    is_told = row.is_lower and row.phase == "forward" and row.calls >= 10
    return takes_one_input and is_told and 2 * (row.casts - row.small) > 3 * row.calls


def _noticed(what: str, beyond: float = 0) -> Callable[[Row], bool]:
    return lambda row: row.noticed.get(what, 0) > beyond


def _rounds_counts(row: Row) -> bool:
    return "largest count" in row.noticed and row.operation not in _COUNTS


def _uses_rounded_counts(row: Row) -> bool:
    return "largest count" in row.noticed and row.operation in _COUNTS


#: The names of these operations in reports.
_COUNTS = frozenset(name.strip("_") for name in ops.observed.COUNTS)


def _holds_float64(row: Row) -> bool:
    """True for float64 in a module. Code outside of modules may use float64 for a reason."""
    return row.reason == "ineligible" and "with float64" in row.noticed and row.module is not None


def _is_too_small(row: Row) -> bool:
    """True for a short product whose casts take more than a third of its time."""
    seconds = row.seconds or 0.0
    is_short = row.calls >= _MANY_CALLS and seconds < row.calls * _SHORT
    return (
        row.is_lower
        and is_short
        and _is_product(row)
        and not _is_own_choice(row)
        and 3 * (row.cast_seconds or 0.0) > seconds
    )


#: The most unusual kinds first. Kinds about wrong results come before those about time.
_KINDS = (
    _Kind(
        "rounded counts",
        _rounds_counts,
        "{named} rounds whole numbers up to {count}, and {lower} counts to {held} only ({calls}). {remedy}",
        mended_by="fp32",
    ),
    _Kind(
        "rounded angles",
        _noticed("largest angle", _LARGEST_ANGLE),
        "{named} is given angles up to {angle}{made_by}, which {lower} holds to {error} only ({calls}). {remedy}",
        mended_by="fp32",
        mends_maker=True,
    ),
    _Kind(
        "compared counts",
        _uses_rounded_counts,
        "{named} is given whole numbers up to {count}{made_by}, and {lower} counts to {held} only ({calls}). {remedy}",
        mended_by="fp32",
        mends_maker=True,
    ),
    _Kind(
        "carried state",
        _noticed("carried"),
        "{named} gives what a module keeps from step to step in {lower}, where small changes get lost ({calls}). "
        "Assign it in float32: compute it under hmp.disable_casts(), of inputs in float32",
        mended_by="fp32",
    ),
    _Kind(
        "lower statistics",
        _noticed("in lower statistics"),
        "{named} keeps its running statistics in {lower}, where they stand still ({calls}). "
        "Keep them in float32: call .float() on that module",
    ),
    _Kind(
        "loss in lower precision",
        _noticed("losses"),
        "{named} gives the loss in {lower}, and a backward begins there ({calls}). "
        "Compute it in float32: call .float() on what it is computed from",
        mended_by="fp32",
    ),
    _Kind(
        "float64",
        _holds_float64,
        "{named} is left alone: an input is float64 ({calls}). Convert it to float32 where it is made, with .float()",
    ),
    _Kind(
        "product in float32", _is_product_in_float32, "{named} runs in float32: {listed} ({calls})", mended_by="lower"
    ),
    _Kind("no kernel", _has_no_kernel, "{named} runs in float32: {why} ({calls})"),
    _Kind("protected", _by_reason("protected"), "{named} is left alone {why} ({calls})"),
    _Kind(
        "disabled", lambda row: row.reason == "disabled" and _is_product(row), "{named} is left alone {why} ({calls})"
    ),
    _Kind(
        "not eligible",
        lambda row: row.reason == "ineligible" and _is_product(row) and not _holds_float64(row),
        "{named} is left alone: an input is float64 or complex, or none is floating ({calls})",
    ),
    _Kind(
        "uncached weight",
        lambda row: bool(row.refused),
        "{named} casts a weight in each call, since no cast is cached: {refused} ({calls})",
    ),
    _Kind(
        "changing weight",
        lambda row: not row.refused and _casts_weight_anew(row),
        "{named} casts its weight in most calls: something computes it or writes to it in between ({calls})",
        more_than_steps=True,
    ),
    _Kind(
        "too small",
        _is_too_small,
        "{named} is too small to gain from {lower}: its casts take {casts} of its time ({calls})",
        least_share=_LEAST_SHARE_OF_SMALL,
        mended_by="fp32",
    ),
    _Kind("as given", _by_reason("as given"), "{named} is left alone: {why} ({calls})"),
    _Kind(
        "scalar",
        _by_reason("scalar"),
        "{named} is given a number beyond the range of {precision}: the largest one took its place ({calls})",
    ),
    _Kind(
        "lower loss",
        _is_loss_in_lower,
        "{named} is a loss, and runs in {precision}: {listed} ({calls})",
        mended_by="fp32",
    ),
    _Kind("elsewhere", _by_reason("elsewhere"), "{named} is left alone: {why} ({calls})"),
)


def _rule_of(report: Records, sources: dict[int, list[Edge]], kind: _Kind, numbers: list[int]) -> Mapping[str, str]:
    """Returns the lines that mend a finding of this kind."""
    rows = [report.rows[number] for number in numbers]
    if not kind.mended_by:
        return {}
    if kind.mends_maker:
        makers = [report.rows[edge.source] for number in numbers for edge in sources[number]]
        rows = [maker for maker in makers if maker.is_lower] or rows
        rows = [row for row in rows if row.operation == rows[0].operation]
    if any(map(_is_own_choice, rows)):
        return {}
    rules = rules_for(rows, kind.mended_by)
    # A line that holds everywhere would contradict the one that decides now.
    is_listed = any(row.reason == "list" for row in rows) and kind.mended_by == "lower"
    return {} if is_listed and rows[0].operation in rules else rules


def _mended(kind: str, numbers: list[int], text: str, rows: list[Row]) -> Finding:
    """Returns a finding that goes if these rows run in float32."""
    rule = {} if any(map(_is_own_choice, rows)) else rules_for(rows, "fp32")
    return Finding(kind, tuple(numbers), _core.printable(text + in_words(rule)), rule=rule)


def _by_line(report: Records, numbers: Iterable[int]) -> list[list[int]]:
    """Groups the rows of one operation at one line, whichever module ran. The most expensive group comes first."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number in numbers:
        row = report.rows[number]
        groups[row.operation, row.file, row.line, row.reason].append(number)

    def cost(group: list[int]) -> tuple[float, int]:
        rows = [report.rows[number] for number in group]
        return _seconds(rows), sum(row.calls for row in rows)

    return sorted(groups.values(), key=cost, reverse=True)


def _sources(report: Records) -> dict[int, list[Edge]]:
    """Returns for each row the edges from rows whose results went into it in most of the calls. An edge of few calls
    means little: a new tensor may be mistaken for an earlier one that had the same memory."""
    found = defaultdict(list)
    for edge in report.edges:
        if 2 * edge.calls >= min(report.rows[edge.source].calls, report.rows[edge.target].calls):
            found[edge.target].append(edge)
    return found


def _given_by(report: Records, sources: dict[int, list[Edge]], numbers: list[int]) -> str:
    """Names the row that made the input whose precision an operation follows."""
    row = report.rows[numbers[0]]
    if row.reason not in ("first_input", "widest"):
        return ""
    makers = [report.rows[edge.source] for number in numbers for edge in sources[number]]
    same = [maker for maker in makers if maker.precision == row.precision]
    return f", made by {_named(same[:1])}" if same else ""


def _of_values(report: Records, sources: dict[int, list[Edge]], numbers: list[int]) -> dict[str, str]:
    """Returns the words about the noticed values, for the text of a kind."""
    rows = [report.rows[number] for number in numbers]
    makers = [report.rows[edge.source] for number in numbers for edge in sources[number]]
    lower = [maker for maker in makers if maker.is_lower]
    bits = 11 if _lower(report, rows[0]) == "fp16" else 8
    angle = max(row.noticed.get("largest angle", 0) for row in rows)
    by_list = any(one.reason == "list" and one.is_lower and not _is_product(one) for one in (rows[0], *lower))
    other = ', or start from preset="recommended"' if by_list else ""
    return {
        "count": f"{max(row.noticed.get('largest count', 0) for row in rows):,.0f}",
        "held": f"{2**bits:,}",
        "angle": f"{angle:,.0f}",
        "error": f"{angle / 2 ** (bits + 1):.2g} radians",
        "made_by": f", made by {_named(lower[:1])}" if lower else "",
        "casts": _percent(_share_of(sum(row.cast_seconds or 0.0 for row in rows), _seconds(rows))),
        "remedy": f"Compute it under hmp.disable_casts(){other}",
    }


def _lower(report: Records, row: Row) -> str:
    """Returns the lower precision that a finding is about."""
    return row.precision if row.is_lower else str((report.configuration or {}).get("lower", "bf16"))


#: Operations that multiply by a number or turn the sign, and sums: their names in reports.
_SCALINGS = frozenset(("div", "neg", "truediv", *(name.strip("_") for name in ops.observed.DECAYS)))
_SUMS = frozenset(name.strip("_") for name in ops.observed.SUMS)

#: Operations that return probabilities, and those that take the logarithm of their input.
_PROBABILITIES = ("sigmoid", "softmax")
_LOGARITHMS = ("binary_cross_entropy", "log", "log10", "log2", "logit", "nll_loss")
#: Operations that may stand in between: they add a small number, or limit the values.
_BETWEEN = ("add", "clamp", "clamp_max", "clamp_min", "clip", "radd", "rsub", "sub")


def _rounded_probabilities(report: Records, sources: dict[int, list[Edge]]) -> list[Finding]:
    """Finds probabilities in lower precision that go into a logarithm: those next to 1 become 1, and their loss 0."""
    after: dict[int, Row] = {}
    for number in list(sources):
        if report.rows[number].operation not in _LOGARITHMS:
            continue
        makers = [edge.source for edge in sources[number]]
        makers += [
            edge.source for maker in makers if report.rows[maker].operation in _BETWEEN for edge in sources[maker]
        ]
        for maker in makers:
            if report.rows[maker].is_lower and report.rows[maker].operation in _PROBABILITIES:
                after[maker] = report.rows[number]
    found = []
    for numbers in _by_line(report, after):
        rows, logarithm = [report.rows[number] for number in numbers], after[numbers[0]]
        instead = "log_softmax" if rows[0].operation == "softmax" else "binary_cross_entropy_with_logits or logsigmoid"
        text = (
            f"{_named(rows)} gives probabilities in {rows[0].precision} to {_named([logarithm])}: those near 0 and 1 "
            f"are rounded to them, and so is the loss ({_weight(report, rows)}). Use {instead}, which take no "
            "probabilities, or call .float() before"
        )
        found.append(_mended("rounded probabilities", numbers, text, rows))
    return found


#: What a sum may do to a product in lower precision, by what is noticed of its values.
_SPOILED = {
    "cancelled": "leaves little of {made}, and much of that is rounding ({calls}), as in a distance or a divergence",
    "lost ridges": "adds to {made} a diagonal that its rounding exceeds, so the sum may have no Cholesky factor "
    "({calls})",
}


def _rounded_differences(report: Records, sources: dict[int, list[Edge]]) -> Iterator[Finding]:
    """Finds sums for which a product in lower precision is too coarse: distances by a² + b² - 2ab, Gram matrices."""
    for noticed, words in _SPOILED.items():
        yield from _spoiled(report, sources, noticed, words)


def _spoiled(report: Records, sources: dict[int, list[Edge]], noticed: str, words: str) -> Iterator[Finding]:
    products: dict[int, list[int]] = {}
    for number, row in enumerate(report.rows):
        if 2 * row.noticed.get(noticed, 0) < row.calls:
            continue
        terms = {edge.source for edge in sources[number]}
        lower = {one for term in terms for one in _products_behind(report, sources, term)}
        others = {term for term in terms if not _products_behind(report, sources, term)}
        # If the other term is made of the product too, both are rounded in the same way: `scores - scores.max()`.
        if lower and not lower & _behind(sources, others):
            products[number] = sorted(lower)
    for numbers in _by_line(report, products):
        rows = [report.rows[number] for number in numbers]
        made = [report.rows[one] for number in numbers for one in products[number]]
        made = [one for one in made if one.operation == made[0].operation]
        what = words.format(made=f"{_named(made[:1])} in {made[0].precision}", calls=_weight(report, rows))
        text = f"{_named(rows)} {what}. Compute the product in float32"
        yield _mended("rounded difference", numbers, text, made)


def _products_behind(report: Records, sources: dict[int, list[Edge]], term: int) -> list[int]:
    """Returns the products in lower precision that a term is, or a multiple or a sum of."""
    found, waiting = [], [term]
    for number in waiting:
        row = report.rows[number]
        if row.is_lower and _is_product(row):
            found.append(number)
        elif row.operation in _SCALINGS | _SUMS:
            waiting += [edge.source for edge in sources[number] if edge.source not in waiting]
    return found


def _behind(sources: dict[int, list[Edge]], terms: set[int]) -> set[int]:
    """Returns the rows of which these terms are made, in a few steps."""
    found = set(terms)
    for _ in range(3):
        found |= {edge.source for number in found for edge in sources[number]}
    return found


def _averages(report: Records, sources: dict[int, list[Edge]]) -> list[Finding]:
    """Finds averages in lower precision that a script keeps in a variable: the sum of one step is multiplied by a
    number next to 1 in the next step."""
    kept: dict[int, Row] = {}
    for number, row in enumerate(report.rows):
        sums = [edge.source for edge in sources[number] if report.rows[edge.source].operation in _SUMS]
        if row.is_lower and row.noticed.get("decays"):
            kept.update((number, report.rows[one]) for one in sums if number in {edge.source for edge in sources[one]})
    found = []
    for numbers in _by_line(report, kept):
        rows = [report.rows[number] for number in numbers]
        text = (
            f"{_named(rows)} keeps an average in {rows[0].precision}, where small changes get lost "
            f"({_weight(report, rows)}). Compute it under hmp.disable_casts(), of values in float32"
        )
        found.append(_mended("average", numbers, text, rows))
    return found


def _lower_weights(report: Records) -> list[Finding]:
    """Finds optimizers whose weights, gradients or state are in lower precision."""
    found: Mapping[str, str] = report.environment.get("lower_state") or {}
    advice = (
        "small updates get lost there. Keep the model in float32: the lists lower what is computed with its weights"
    )
    texts = [f"{optimizer} steps {what}: {advice}" for optimizer, what in found.items()]
    updates = report.environment.get("lower_updates", 0)
    if updates > 1 and not report.environment.get("optimizer_steps"):  # one may merge or prune
        texts.append(
            f"Values in lower precision were written into weights in float32 ({_count(updates, 'call')}): if that is "
            "the step of an optimizer of your own, put it under `with hmp.disable_casts():`"
        )
    return [Finding("lower weights", (), _core.printable(text)) for text in texts]


def _lower_losses(report: Records) -> list[Finding]:
    """Finds losses in lower precision, where no row says what made them."""
    found: Mapping[str, str] = report.environment.get("lower_losses") or {}
    if any(row.noticed.get("losses") for row in report.rows):
        return []
    texts = (
        f"The loss is in {precision} where a backward begins, at {place}. Compute it in float32: call .float() on what "
        "it is computed from"
        for place, precision in found.items()
    )
    return [Finding("loss in lower precision", (), _core.printable(text)) for text in texts]


def _ping_pongs(report: Records, sources: dict[int, list[Edge]]) -> list[Finding]:
    """Finds calls between neighbours of the other precision: their input is cast, and their result is cast back. The
    advice to lower a call is given only if it saves a hundredth of all time."""
    least = _LEAST_SHARE * _seconds(report.main_rows)
    ins, outs = defaultdict(list), defaultdict(list)
    for edges in sources.values():
        for edge in edges:
            if edge.casts:
                ins[edge.target].append(edge)
                outs[edge.source].append(edge)
    between = []
    for number, row in enumerate(report.rows):
        before = [edge.source for edge in ins[number] if _are_opposite(row, report.rows[edge.source])]
        after = [edge for edge in outs[number] if _are_opposite(row, report.rows[edge.target])]
        if row.precision == "unchanged" or not before or not after:
            continue
        saves = (row.cast_seconds or 0.0) + sum(_part(report.rows[edge.target], edge.casts) for edge in after)
        # A product should stay lower; so should any operation that takes longer than the casts around it.
        if row.is_lower and (_is_product(row) or saves < (row.seconds or 0.0)):
            continue
        if _is_own_choice(row) or not (row.is_lower or _may_be_lowered(row)):
            continue
        between.append((number, before[0], after[0].target, saves))
    found = []
    for numbers in _by_line(report, [one[0] for one in between]):
        parts = [one for one in between if one[0] in numbers]
        saves = sum(one[3] for one in parts)
        if saves < least and not report.rows[numbers[0]].is_lower:
            continue
        rows = [report.rows[number] for number in numbers]
        rule = rules_for(rows, "fp32" if rows[0].is_lower else "lower")
        text = _core.printable(_ping_pong_text(report, parts, saves) + in_words(rule))
        found.append(Finding("ping-pong", tuple(numbers), text, saves, rule))
    return sorted(found, key=lambda one: -(one.saves or 0.0))


def _are_opposite(row: Row, neighbour: Row) -> bool:
    return neighbour.precision == "fp32" if row.is_lower else neighbour.is_lower


def _part(row: Row, casts: int) -> float:
    """Returns the seconds that this many of a row's casts take."""
    return (row.cast_seconds or 0.0) * min(1.0, casts / row.casts) if row.casts else 0.0


def _ping_pong_text(report: Records, parts: list[tuple[int, int, int, float]], saves: float) -> str:
    number, before, after, _ = parts[0]
    row, first, last = report.rows[number], report.rows[before], report.rows[after]
    rows = [report.rows[one[0]] for one in parts]
    risk = "" if row.is_lower else f"; {_RISKS.get(row.operation, 'its result is then rounded to it')}"
    return (
        f"{_named(rows)} runs in {row.precision} ({_because(row)}) between {first.operation} and {last.operation} in "
        f"{first.precision}. Casts there and back take {_time(saves)}: they go if it runs in {first.precision} too"
        f"{risk}"
    )


#: The risk of each operation when it runs in lower precision.
_RISKS = {
    "add": "a residual sum then loses small terms",
    "layer_norm": "its statistics stay in float32, its result is rounded to it",
    "log": "the logarithms of values near 1 are then rounded away",
    "log_softmax": "a loss that is computed from it is then rounded to it",
    "softmax": "small probabilities then keep few digits, and a loss must not be computed from them",
}


# ---- words ----------------------------------------------------------------------------------------------------------


def _named(rows: list[Row]) -> str:
    return f"{rows[0].operation}{_backward(rows[0])}{_at(rows)}"


def _backward(row: Row) -> str:
    return " in a backward" if row.phase == "backward" else ""


def _at(rows: list[Row], before: str = " at ", *, with_modules: bool = True) -> str:
    """Returns the place of the most expensive row, and its module, or the number of modules at that line."""
    row = max(rows, key=lambda one: (one.seconds or 0.0, one.calls))
    modules = list(dict.fromkeys(one.module for one in rows if one.module))
    named = modules[0] if len(modules) == 1 else f"{len(modules)} modules" if modules else ""
    if row.place:
        return before + row.place + (f" ({named})" if named and with_modules else "")
    return f" in {named}" if named and with_modules else ""


def _weight(report: Records, rows: list[Row]) -> str:
    """Returns the number of calls, and their share of all time."""
    size, of_time = _size(report, rows)
    share = _share_of(size, report.size[0])
    return _calls(rows) + (f", {_percent(share)} of all time" if of_time and share >= 0.01 else "")


def _calls(rows: Iterable[Row]) -> str:
    return _count(sum(row.calls for row in rows), "call")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _bytes(number: int) -> str:
    return f"{number / 1e6:.1f} MB" if number >= 1e6 else f"{number / 1e3:.1f} kB"


def _share_of(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else "less than 1 %"


def _time(seconds: float) -> str:
    return (
        f"{seconds:.2f} s"
        if seconds >= 1
        else f"{1e3 * seconds:.2f} ms"
        if seconds >= 1e-3
        else f"{1e6 * seconds:.0f} µs"
    )
