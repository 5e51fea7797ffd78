"""The words of a report: how much ran in lower precision, what did not and why, and what is worth a look."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from habana_mp import _core, ops
from habana_mp.ops import observed
from habana_mp.policy.lists import EVERY
from habana_mp.policy.module_rules import KEPT
from habana_mp.policy.precisions import FLOAT32_RESULT
from habana_mp.reporting.records import PRECISIONS, REASONS, Records, Row, counted, with_ranks
from habana_mp.reporting.remedies import Finding, in_words, rules_for

_MOST_LINES = 10

#: The end of the first line where torch.compile is at work.
_COMPILED = ". Compiled code is counted while it is traced, not when it runs"

_LOSSES = frozenset(name for row in ops.losses.ROWS for name in row.names.split())


def findings_of(report: Records) -> tuple[Finding, ...]:
    """Returns all findings: the most unusual kinds first, and the most expensive finding of each kind first."""
    flow = _Flow(report)
    of_kinds = (one for kind in _KINDS for one in _of_kind(kind, report, flow))
    return *_of_environment(report), *of_kinds, *_ping_pongs(report, flow)


def first_lines(report: Records, findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """Returns the first lines of a report. One finding of each kind has a line, then a second one, so no kind is
    crowded out."""
    if not report.rows:
        return (_share(report, findings),)
    lines = [
        *_off_for_no_device(report),
        _share(report, findings),
        *(f"The guard: {with_ranks(text, ranks)}" for text, ranks in report.guarded.items()),
        *_outside(report),
        *_off(report),
        *_in_float32(report, findings),
        *_dearest_casts(report),
    ]
    kinds: dict[str, list[str]] = defaultdict(list)
    for one in findings:
        kinds[one.kind].append(one.text)
    room = max(0, _MOST_LINES - len(lines))
    second = room - len(kinds)
    for texts in list(kinds.values())[:room]:
        most = 2 if second > 0 else 1
        second -= len(texts[1:most])
        more = len(texts) - most
        lines += texts[:most]
        lines[-1] += f" ({counted(more, 'more place')} like it)" if more > 0 else ""
    return tuple(map(_core.printable, lines))


# ---- numbers and words of some rows ---------------------------------------------------------------------------------


class _Part:
    """Some rows of a report, and what they are of the whole."""

    def __init__(self, report: Records, rows: Sequence[Row], numbers: Sequence[int] = ()) -> None:
        self.rows, self.numbers = rows, tuple(numbers)
        self.calls = sum(row.calls for row in rows)
        self.seconds = sum(row.seconds or 0.0 for row in rows)
        self.casting = sum(row.cast_seconds or 0.0 for row in rows)
        whole, self.of_time = report.size
        #: Their time if the report has times, or else their calls.
        self.size = self.seconds if self.of_time else float(self.calls)
        #: Its part of all rows. It is compared with limits, and never shown, as not all that ran has a row.
        self.share = self.size / whole if whole else 0.0
        self.counted = counted(self.calls, "call")

    @property
    def weight(self) -> str:
        """The number of calls, and their time if it is a hundredth of that of all rows."""
        return self.counted + (f", {_time(self.size)}" if self.of_time and self.share >= 0.01 else "")


def _grouped(report: Records, numbers: Iterable[int], key: Callable[[Row], object]) -> list[_Part]:
    """Returns the groups of rows of these numbers that have the same key, the most expensive group first."""
    groups: dict[object, list[int]] = defaultdict(list)
    for number in numbers:
        groups[key(report.rows[number])].append(number)
    parts = [_Part(report, [report.rows[number] for number in group], group) for group in groups.values()]
    return sorted(parts, key=lambda part: (part.size, part.calls), reverse=True)


def _by_line(report: Records, numbers: Iterable[int]) -> list[_Part]:
    """Groups the rows of one operation at one line, whichever module ran."""
    return _grouped(report, numbers, lambda row: (row.operation, row.file, row.line, row.reason))


def _named(rows: Sequence[Row]) -> str:
    return f"{rows[0].operation}{_backward(rows[0])}{_at(rows)}"


def _backward(row: Row) -> str:
    return " in a backward" if row.phase == "backward" else ""


def _at(rows: Sequence[Row]) -> str:
    """Returns the place of the most expensive row, and its module, or the number of modules at that line."""
    modules = list(dict.fromkeys(row.module for row in rows if row.module))
    module = f"{len(modules)} modules" if len(modules) > 1 else "".join(modules)
    place = _place(rows, " at ")
    return place + (f" ({module})" if place else f" in {module}") if module else place


def _place(rows: Sequence[Row], before: str) -> str:
    place = max(rows, key=lambda row: (row.seconds or 0.0, row.calls)).place
    return before + place if place else ""


def _because(row: Row) -> str:
    if row.is_listed and row.rule not in (None, KEPT.source):
        return f"listed in {row.rule}"
    return row.why if row.rule is None or not row.rule.startswith("rule") else f"{row.why}, {row.rule}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else "less than 1 %"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.2f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.0f} µs"


# ---- how much -------------------------------------------------------------------------------------------------------


def _share(report: Records, findings: tuple[Finding, ...]) -> str:
    """Returns the line about products, and about the calls in each precision and their time. It has no shares: calls in
    float32 that no list and no rule decides have no row. Steps of optimizers are no part of it."""
    main = _Part(report, report.main_rows)
    if not any(row.is_lower for row in main.rows):
        is_compiled = _is_compiled(report) or (not main.rows and report.environment.get("compiled_before"))
        return f"Nothing ran in lower precision{_why_nothing_ran_lower(report)}{_COMPILED if is_compiled else ''}"
    products, is_compiled = _of_products(report), _is_compiled(report)
    if products and not main.of_time and is_compiled:  # most calls are those of the compiler
        return f"{products}{_COMPILED}"
    present = sorted({row.precision for row in main.rows}, key=PRECISIONS.index)
    of_each = [(one, _Part(report, [row for row in main.rows if row.precision == one])) for one in present]
    texts = [
        f"{'left alone' if one == 'unchanged' else one}: {its.counted}{f' ({_time(its.size)})' if its.of_time else ''}"
        for one, its in of_each
    ]
    steps = sum(row.calls for row in report.rows) - main.calls
    texts += [f"not counted: {counted(steps, 'call')} in optimizers' steps"] if steps else []
    more = _both_ways(main.rows) + (_COMPILED if is_compiled else "")
    return f"{products}{'. ' if products else ''}{', '.join(texts)}{more}"


def _both_ways(rows: Sequence[Row]) -> str:
    """Returns how many times as fast calls were in lower precision as the same operations of the same places without
    casts, or in float32. Returns an empty text if none ran both ways."""

    def key(row: Row) -> object:
        return row.operation, row.module, row.file, row.line, row.phase

    calls: dict[object, int] = defaultdict(int)
    seconds: dict[object, float] = defaultdict(float)
    for row in rows:
        if row.precision == "fp32" or _is_off(row):
            calls[key(row)] += row.calls
            seconds[key(row)] += row.seconds or 0
    lower = [row for row in rows if row.is_lower and row.seconds and seconds[key(row)]]
    expected = sum(row.calls * seconds[key(row)] / calls[key(row)] for row in lower)
    took = sum(row.seconds or 0 for row in lower)
    return f"; {expected / took:.1f} times as fast as without casts, where both ran" if lower else ""


def _of_products(report: Records) -> str:
    """Returns the sentence about products, or an empty text if there were none."""
    products = _Part(report, [row for row in report.main_rows if _is_product(row)])
    lower = _Part(report, [row for row in products.rows if row.is_lower])
    if not products.rows:
        return ""
    precisions = {row.precision for row in lower.rows}
    where = f"in {precisions.pop()}" if len(precisions) == 1 else "in lower precision"
    with_sums = sum(row.calls for row in lower.rows if row.reason == "float32_result")
    if with_sums:
        where += f", {'' if with_sums == lower.calls else f'{with_sums:,} of them '}with a float32 result"
    if lower.calls == products.calls:
        return f"{'The product' if lower.calls == 1 else f'All {lower.calls:,} products'} ran {where}"
    if lower.rows and lower.of_time:
        where += f", {_percent(lower.size / products.size if products.size else 0.0)} of their time"
    return f"{f'{lower.calls:,}' if lower.calls else 'None'} of {counted(products.calls, 'product')} ran {where}"


def _is_compiled(report: Records) -> bool:
    return bool(report.environment.get("compiled_graphs")) or any(row.phase == "traced" for row in report.rows)


def _is_off(row: Row) -> bool:
    """True if casts are off for all calls with this row's reason."""
    return row.reason in REASONS and REASONS[row.reason].casts_off


def _why_nothing_ran_lower(report: Records) -> str:
    """Returns the cause, or the reason of most calls, and which calls are not counted."""
    rows, configuration = report.rows, report.configuration
    if configuration is None:
        never = ": hmp.convert() was not called in this process, before the model runs"
        return ": not converted now" if rows else never
    if configuration.get("opt_level") == "O0":
        return ': opt_level="O0" casts nothing'
    return f": {_why_of_calls(report, configuration.get('within'))}{_not_counted(report)}"


def _why_of_calls(report: Records, within: str | None) -> str:
    rows, is_known = report.rows, report.detail != "operations"
    where = "a module" if within in (None, "modules") else "the modules that convert was given"
    if within is not None and all(row.reason == "outside" or (is_known and row.module is None) for row in rows):
        if is_known and not report.modules:
            return f"no module ran, and the lists lower only in {'one' if where == 'a module' else where}"
        if rows:
            return f"all counted calls were outside of modules, and the lists lower only in {where}"
    if not rows and report.modules:
        return f"{counted(len(report.modules), 'module')} ran, without a call that a list or a rule decides"
    if not rows:
        return "no call that a list or a rule decides was counted in this process since hmp.convert()"
    calls = Counter[tuple[str, str]]()
    for row in report.main_rows:
        calls[row.reason, row.inside] += row.calls
    most = max(calls, key=lambda one: calls[one])
    those = [row for row in rows if (row.reason, row.inside) == most]
    how = "left alone" if those[0].precision == "unchanged" else f"in {those[0].precision}"
    return f"{counted(calls[most], 'call')} {how}{_at(those)} ({_because(those[0])})"


def _not_counted(report: Records) -> str:
    """Returns sentences about calls that the report does not count."""
    blocks = report.environment.get("disabled_blocks", 0) if report.detail == "operations" else 0
    off = f'. Calls in {counted(blocks, "block")} of hmp.disable_casts() count with report="modules" and "lines" only'
    text = off if blocks else ""
    if not any(map(_is_product, report.rows)):
        text += ". Those of quantized modules, of onnxruntime and of TorchScript are not counted"
    return text


def _off_for_no_device(report: Records) -> Iterator[str]:
    """Yields a line about regions that switch casts off for a device that is not here."""
    places: Mapping[str, str] = report.environment.get("disabled_for_no_device") or {}
    if places and any(row.reason == "autocast_off" for row in report.rows):
        place, device = next(iter(places.items()))
        more = f" (and {counted(len(places) - 1, 'more place')} like it)" if len(places) > 1 else ""
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
            f"{counted(sum(row.calls for row in rows), 'product')} outside of modules ran in float32 ({named}"
            f"{_place(rows, ', most at ')}): the lists lower in modules only"
        )


def _off(report: Records) -> Iterator[str]:
    """Yields a line about the calls that ran with casts off."""
    reasons = {row.reason for row in report.main_rows if _is_off(row)}
    groups = _grouped(report, [n for n, row in enumerate(report.rows) if row.reason in reasons], lambda row: row.why)
    if groups:
        off = _Part(report, [row for one in groups for row in one.rows])
        parts = [f"{one.calls:,} {one.rows[0].why}{_place(one.rows, ', most at ')}" for one in groups[:2]]
        yield f"Casts were off in {off.counted}{f' ({_time(off.size)})' if off.of_time else ''}: {'; '.join(parts)}"


def _in_float32(report: Records, findings: tuple[Finding, ...]) -> Iterator[str]:
    """Yields a line about what cost most in float32 and is in no finding."""
    if not report.size[1] and _is_compiled(report):
        return
    found = {number for finding in findings for number in finding.rows}
    inside = [n for n, row in enumerate(report.rows) if row.precision == "fp32" and row.reason != "outside"]
    left = [number for number in inside if number not in found]
    # Outside of modules, one line may be a whole step of an optimizer.
    groups = _grouped(report, left, lambda row: (not row.module and row.place) or (row.operation, _because(row)))
    parts = [_part_in_float32(one) for one in groups[:3] if one.share >= 0.01]
    if parts:
        yield f"In float32: {'; '.join(parts)}"


def _part_in_float32(part: _Part) -> str:
    rows, size = part.rows, _time(part.size) if part.of_time else part.counted
    names = list(dict.fromkeys(row.operation for row in rows))
    if len(names) == 1:
        return f"{names[0]}{_backward(rows[0])} {size} ({_because(rows[0])}{_place(rows, ', ')})"
    named = ", ".join((*names[:3], "...") if len(names) > 3 else names)
    return f"{counted(len(names), 'operation')} of {rows[0].place} {size} ({named})"


def _dearest_casts(report: Records) -> Iterator[str]:
    """Yields a line about the time of casts, and the row with the most of it."""
    main = _Part(report, report.main_rows)
    if not main.seconds or not main.casting or any(row.phase == "traced" for row in main.rows):
        return
    line = f"Casts took {_time(main.casting)} ({counted(sum(row.casts for row in main.rows), 'cast')})"
    if main.casting >= 0.01 * main.seconds:
        row = max(main.rows, key=lambda one: one.cast_seconds or 0.0)
        seconds = row.cast_seconds or 0.0
        size = f"{row.bytes / 1e6:.1f} MB" if row.bytes >= 1e6 else f"{row.bytes / 1e3:.1f} kB"
        line += (
            f". {_percent(seconds / main.casting)} of that is {_named([row])}: {_time(seconds)}, "
            f"{counted(row.casts, 'cast')}, {size}"
        )
    yield line


# ---- what is unusual ------------------------------------------------------------------------------------------------


class _Flow:
    """The way of results from row to row, by the numbers of rows."""

    def __init__(self, report: Records) -> None:
        self.rows = report.rows
        calls = [row.calls for row in report.rows]
        #: An edge of few calls means little: a new tensor may be mistaken for an earlier one that had the same memory.
        self.edges = [one for one in report.edges if 2 * one.calls >= min(calls[one.source], calls[one.target])]
        self.makers: dict[int, list[int]] = defaultdict(list)
        for one in self.edges:
            self.makers[one.target].append(one.source)

    def lower_products(self, numbers: Iterable[int]) -> list[int]:
        return [one for one in sorted(numbers) if self.rows[one].is_lower and _is_product(self.rows[one])]

    def lower_others(self, numbers: Iterable[int]) -> list[int]:
        """Returns the rows in lower precision that are no products."""
        return [one for one in sorted(numbers) if self.rows[one].is_lower and not _is_product(self.rows[one])]

    def behind(self, numbers: Iterable[int], through: Collection[str] | None = None) -> set[int]:
        """Returns these rows and those of which they are made in three steps: by any operation, or by these."""
        found = set(numbers)
        for _ in range(3):
            passed = [one for one in found if through is None or self.rows[one].operation in through]
            found.update(maker for one in passed for maker in self.makers[one])
        return found


class _Kind(NamedTuple):
    """A kind of finding: the condition on its rows, and its text."""

    name: str
    applies: Callable[[Row], bool]
    words: str
    #: The precision in which its operations would be right, if a line of a list can give them that. ``*``: all that its
    #: modules compute would be right in float32.
    mended_by: str = ""
    #: The other rows that the text names, such as those that made the input. Without any of them, None: no finding.
    others: Callable[[_Flow, int], list[int] | None] = lambda flow, number: []
    #: True if those are to get that precision, where there are any.
    mends_others: bool = False
    #: False for rows that are as they should be in this report.
    matters: Callable[[_Part, Mapping[str, Any]], bool] = lambda part, environment: True


def _of_kind(kind: _Kind, report: Records, flow: _Flow) -> Iterator[Finding]:
    found = {number: kind.others(flow, number) for number, row in enumerate(report.rows) if kind.applies(row)}
    others = {number: its for number, its in found.items() if its is not None}
    for part in _by_line(report, others):
        if kind.matters(part, {**(report.configuration or {}), **report.environment}):
            named = [report.rows[one] for number in part.numbers for one in others[number]]
            mended = named if kind.mends_others and named else part.rows
            rule = _rule_for(mended, kind.mended_by) if kind.mended_by else {}
            yield _finding(kind.name, kind.words.format(**_words(report, part, named)), rule, rows=part.numbers)


def _words(report: Records, part: _Part, others: Sequence[Row]) -> dict[str, object]:
    """Returns the words for the text of a kind."""
    row = part.rows[0]
    lower = row.precision if row.is_lower else str((report.configuration or {}).get("lower", "bf16"))
    bits = 11 if lower == "fp16" else 8
    count, angle = (max(one.noticed.get(what, 0) for one in part.rows) for what in ("largest count", "largest angle"))
    other = _named(others[:1]) if others else ""
    by_list = any(one.reason == "list" and one.is_lower and not _is_product(one) for one in (row, *others))
    return {
        "named": _named(part.rows),
        "calls": part.weight,
        "row": row,
        "because": _because(row),
        "lower": lower,
        "other": other,
        "made_by": other and f", made by {other}",
        "others": others,
        "refused": ", ".join(dict.fromkeys(reason for one in part.rows for reason in one.refused)),
        "casts": _percent(part.casting / part.seconds if part.seconds else 0.0),
        "count": f"{count:,.0f}",
        "held": f"{2**bits:,}",
        "angle": f"{angle:,.0f}",
        "error": f"{angle / 2 ** (bits + 1):.2g} radians",
        "remedy": "Compute it under hmp.disable_casts()" + (', or start from preset="recommended"' if by_list else ""),
        "instead": "log_softmax, which takes"
        if row.operation == "softmax"
        else "binary_cross_entropy_with_logits or logsigmoid, which take",
    }


def _rule_for(rows: Sequence[Row], precision: str) -> dict[str, str]:
    """Returns the lines that give the operations of these rows this precision, unless a user's line decides."""
    if precision == EVERY:
        return rules_for(EVERY, [row.module for row in rows], "fp32")
    rules: dict[str, str] = {}
    have_sums = all(ops.can_have_float32_result(row.operation) for row in rows)
    precision = "fp32" if precision.endswith(FLOAT32_RESULT) and not have_sums else precision
    for operation in () if any(map(_is_own_choice, rows)) else dict.fromkeys(row.operation for row in rows):
        those = [row for row in rows if row.operation == operation]
        found = rules_for(operation, [row.module for row in those], precision)
        # A line that holds everywhere would contradict the one that decides now.
        is_listed = any(row.reason == "list" for row in those) and precision == "lower"
        rules |= {} if is_listed and operation in found else found
    return rules


def _finding(kind: str, text: str, rule: Mapping[str, str] = {}, **more: Any) -> Finding:
    return Finding(kind, _core.printable(text + in_words(rule)), rule, **more)


# ---- the kinds ------------------------------------------------------------------------------------------------------

#: The names in reports of operations that need exact integers, of sums, and of what multiplies or turns the sign.
_COUNTS = frozenset(name.strip("_") for name in observed.COUNTS)
_SUMS = frozenset(name.strip("_") for name in observed.SUMS)
_SCALINGS = frozenset(("div", "neg", "truediv", *(name.strip("_") for name in observed.DECAYS)))

#: Operations that take the logarithm of their input, and those before them that add a small number or limit the values.
_LOGARITHMS = ("binary_cross_entropy", "log", "log10", "log2", "logit", "nll_loss")
_BEFORE_LOGARITHMS = ("add", "clamp", "clamp_max", "clamp_min", "clip", "radd", "rsub", "sub")


def _is_product(row: Row) -> bool:
    known = ops.row_of(row.operation)
    made = known.is_product or known.made_of_products or known.products_inside or known.o2 == "lower"
    return made or row.operation == "scaled_dot_product_attention"


def _is_mean(row: Row) -> bool:
    return bool(observed.MEANS.search(row.operation))


def _is_own_choice(row: Row) -> bool:
    """True if a line that the user wrote decides. No finding advises against it."""
    return row.is_own and row.is_listed


def _may_be_lowered(row: Row) -> bool:
    """True if a finding may advise to lower it: a product, or what stands between lowered calls, in the forward of a
    module. Outside of one, in a backward and in exact code, float32 may be meant. Other calls no list can lower."""
    in_forward = row.module is not None and row.phase == "forward"
    is_fixed = row.reason in ("arithmetic", "in_place", "library", "no_kernel", "no_product")
    return in_forward and not is_fixed and ops.has_kernel(row.operation) and not _is_own_choice(row)


def _casts_weight_anew(row: Row) -> bool:
    """True if most calls cast their weight again. At most one cast per call is of the input, the others are of the
    weight or the bias."""
    takes_one_input = row.operation == "linear" or row.operation.startswith("conv")
    is_counted = row.is_lower and row.phase == "forward" and row.calls >= 10 and not row.refused
    return takes_one_input and is_counted and 2 * (row.casts - row.needed) > 3 * row.calls


def _holds_float64(row: Row) -> bool:
    """True for float64 in a module. Code outside of modules may use float64 for a reason."""
    return row.reason == "ineligible" and "with float64" in row.noticed and row.module is not None


def _is_too_small(row: Row) -> bool:
    """True for a product of less than 0.1 ms whose casts take more than a third of it. First calls take longer."""
    seconds = row.seconds or 0.0
    is_short = row.is_lower and row.calls >= 10 and seconds < row.calls * 100e-6
    return is_short and 3 * (row.cast_seconds or 0.0) > seconds and _is_product(row) and not _is_own_choice(row)


def _by_reason(finding: str) -> Callable[[Row], bool]:
    """Returns the condition that a row's reason is one of those that make this kind of finding."""
    return lambda row: row.reason in REASONS and REASONS[row.reason].finding == finding


def _lower_makers(flow: _Flow, number: int) -> list[int]:
    return [one for one in flow.makers[number] if flow.rows[one].is_lower]


def _that_it_follows(flow: _Flow, number: int) -> list[int]:
    """Returns the rows that made the input whose precision an operation follows."""
    row = flow.rows[number]
    follows = row.reason in ("first_input", "widest")
    return [one for one in flow.makers[number] if follows and flow.rows[one].precision == row.precision]


def _coarse_products(flow: _Flow, number: int) -> list[int] | None:
    """Returns the products in lower precision that a term of a sum is, or a multiple or a sum of, and of what is before
    the sum the means and what a list lowers. Returns None if the other term is made of the product too: both are
    rounded in the same way, as in `scores - scores.max()`."""
    behind = {term: flow.behind((term,), _SCALINGS | _SUMS) for term in flow.makers[number]}
    made = {one for its in behind.values() for one in its}
    found = flow.lower_products(made)
    others = [term for term, its in behind.items() if its.isdisjoint(found)]
    lower = flow.lower_others(flow.behind((number,)))
    others_before = [one for one in lower if flow.rows[one].reason == "list" or _is_mean(flow.rows[one])]
    return found + others_before if found and flow.behind(others).isdisjoint(found) else None


def _products_of_system(flow: _Flow, number: int) -> list[int] | None:
    """Returns the products in lower precision of a linear system that are in the module of the solution."""
    module, found = f"{flow.rows[number].module}.", flow.lower_products(flow.behind((number,)))
    return [one for one in found if f"{flow.rows[one].module}.".startswith(module)] or None


def _last_sums(flow: _Flow, number: int) -> list[int] | None:
    """Returns the nearest products in lower precision that make a result, and the means in lower precision there."""
    behind = flow.behind((number,))
    last = next(filter(None, map(flow.lower_products, ([number], flow.makers[number], behind))), None)
    return last and last + [one for one in flow.lower_others(behind) if _is_mean(flow.rows[one])]


def _parts_of_loss(flow: _Flow, number: int) -> list[int]:
    """Returns the operation that gives a loss, and those of its module between it and the nearest products."""
    found = new = [number]
    while new:
        makers = flow.lower_others({maker for one in new for maker in flow.makers[one]}.difference(found))
        new = [one for one in makers if flow.rows[one].module == flow.rows[number].module]
        found = found + new
    return found


def _sums_of_steps(flow: _Flow, number: int) -> list[int] | None:
    """Returns the sums that are multiplied in the step after they were made of a product here."""
    sums = (one for one in flow.makers[number] if flow.rows[one].operation in _SUMS)
    return [one for one in sums if number in flow.makers[one]] or None


def _logarithms_of(flow: _Flow, number: int) -> list[int] | None:
    logarithms = [one for one, row in enumerate(flow.rows) if row.operation in _LOGARITHMS]
    return [one for one in logarithms if number in flow.behind(flow.makers[one], _BEFORE_LOGARITHMS)] or None


_difference = partial(_Kind, "rounded difference", mends_others=True)

#: The most unusual kinds first. Kinds about wrong results come before those about time.
_KINDS = (
    _difference(
        lambda row: "mostly rounding" in row.noticed or 2 * row.noticed.get("cancelled", 0) >= row.calls,
        "{named} leaves little of {other} in {others[0].precision}, and much of that is rounding ({calls}), as in a "
        "distance or a divergence. Compute the product in float32",
        mended_by="fp32",
        others=_coarse_products,
    ),
    _difference(
        lambda row: "lost ridges" in row.noticed,
        "{named} adds to {other} in {others[0].precision} a diagonal that its rounding exceeds, so the sum may have no "
        "Cholesky factor ({calls}). Compute the product in float32",
        mended_by="fp32",
        others=_coarse_products,
    ),
    _difference(
        # Results that have nothing in common are so near to each other once in a hundred times.
        lambda row: row.noticed.get("nearly equal", 0) >= max(8, row.noticed.get("subtracted", 0) / 8),
        "Results of the model that come from {other} are subtracted outside of it, and of nearly equal ones the "
        "difference is mostly their rounding ({calls}). Keep their sum in float32, and means before it: what else is "
        "rounded before remains, which hmp.diagnose measures",
        mended_by="lower -> fp32",
        others=_last_sums,
    ),
    _Kind(
        "solution of rounded values",
        lambda row: row.module is not None and row.phase == "forward" and bool(observed.SOLVES.search(row.operation)),
        "{named} solves a system in which {other} is rounded to {others[0].precision}, and multiplies that rounding "
        "({calls}). Keep its module in float32: what was rounded before it remains, which hmp.diagnose measures",
        mended_by=EVERY,
        others=_products_of_system,
    ),
    _Kind(
        "average",
        lambda row: row.is_lower and "decays" in row.noticed,
        "{named} keeps an average in {row.precision}, where small changes get lost ({calls}). Compute it under "
        "hmp.disable_casts(), of values in float32",
        mended_by="fp32",
        others=_sums_of_steps,
    ),
    _Kind(
        "rounded counts",
        lambda row: "largest count" in row.noticed and row.operation not in _COUNTS,
        "{named} rounds whole numbers up to {count}, and {lower} counts to {held} only ({calls}). {remedy}",
        mended_by="fp32",
        others=_lower_makers,
    ),
    _Kind(
        "rounded angles",
        # In bfloat16 the error of a larger angle is more than a sixteenth of a radian.
        lambda row: row.noticed.get("largest angle", 0) > 32,
        "{named} is given angles up to {angle}{made_by}, which {lower} holds to {error} only ({calls}). {remedy}",
        mended_by="fp32",
        others=_lower_makers,
        mends_others=True,
    ),
    _Kind(
        "compared counts",
        lambda row: "largest count" in row.noticed and row.operation in _COUNTS,
        "{named} is given whole numbers up to {count}{made_by}, and {lower} counts to {held} only ({calls}). {remedy}",
        mended_by="fp32",
        others=_lower_makers,
        mends_others=True,
    ),
    _Kind(
        "carried state",
        lambda row: "carried" in row.noticed,
        "{named} gives what a module keeps from step to step in {lower}, where small changes get lost ({calls}). "
        "Assign it in float32: compute it under hmp.disable_casts(), of inputs in float32",
        mended_by="fp32",
    ),
    _Kind(
        "lower statistics",
        lambda row: "in lower statistics" in row.noticed,
        "{named} keeps its running statistics in {lower}, where they stand still ({calls}). "
        "Keep them in float32: call .float() on that module",
    ),
    _Kind(
        "loss in lower precision",
        lambda row: "losses" in row.noticed,
        "{named} gives the loss in {lower}, and a backward begins there ({calls}). "
        "Compute it in float32: call .float() on what it is computed from",
        mended_by="fp32",
        others=_parts_of_loss,
        mends_others=True,
    ),
    _Kind(
        "float64",
        _holds_float64,
        "{named} is left alone: an input is float64 ({calls}). Convert it to float32 where it is made, with .float()",
    ),
    _Kind(
        "product in float32",
        lambda row: row.precision == "fp32" and _is_product(row) and _may_be_lowered(row),
        "{named} runs in float32: {because}{made_by} ({calls})",
        mended_by="lower",
        others=_that_it_follows,
    ),
    _Kind(
        "no kernel",
        lambda row: row.reason == "no_kernel" and row.precision == "fp32" and row.operation not in _LOSSES,
        "{named} runs in float32: {row.why} ({calls})",
    ),
    _Kind("protected", _by_reason("protected"), "{named} is left alone {row.why} ({calls})"),
    _Kind(
        "disabled",
        lambda row: row.reason == "disabled" and _is_product(row),
        "{named} is left alone {row.why} ({calls})",
    ),
    _Kind(
        "not eligible",
        lambda row: row.reason == "ineligible" and _is_product(row) and not _holds_float64(row),
        "{named} is left alone: an input is float64 or complex, or none is floating ({calls})",
    ),
    _Kind(
        "uncached weight",
        lambda row: bool(row.refused) and 2 * sum(row.refused.values()) >= row.calls,
        "{named} casts a weight in each call, since no cast is cached: {refused} ({calls})",
    ),
    _Kind(
        "changing weight",
        _casts_weight_anew,
        "{named} casts its weight in most calls: something computes it or writes to it in between ({calls})",
        # A trained weight is cast for each step, and each weight for each call where no cast is cached.
        matters=lambda part, its: max(row.calls for row in part.rows) > its.get("optimizer_steps", 0)
        and its.get("weight_cache", True)
        and not its.get("no_cast_is_cached"),
    ),
    _Kind(
        "too small",
        _is_too_small,
        "{named} is too small to gain from {lower}: its casts take {casts} of its time ({calls})",
        mended_by="fp32",
        matters=lambda part, its: (
            part.share >= 0.05
            # Each step of an optimizer needs new casts of weights. Others are needed once.
            and (its.get("optimizer_steps", 0) > 0 or 2 * sum(row.needed for row in part.rows) <= part.calls)
        ),
    ),
    _Kind("as given", _by_reason("as given"), "{named} is left alone: {row.why} ({calls})"),
    _Kind(
        "scalar",
        _by_reason("scalar"),
        "{named} is given a number beyond the range of {row.precision}: the largest one took its place ({calls})",
    ),
    _Kind(
        "lower loss",
        lambda row: row.is_lower and row.operation in _LOSSES and not row.is_listed,
        "{named} is a loss, and runs in {row.precision}: {because}{made_by} ({calls})",
        mended_by="fp32",
        others=_that_it_follows,
    ),
    _Kind("elsewhere", _by_reason("elsewhere"), "{named} is left alone: {row.why} ({calls})"),
    _Kind(
        "rounded probabilities",
        lambda row: row.is_lower and row.operation in ("sigmoid", "softmax"),
        "{named} gives probabilities in {row.precision} to {other}: those near 0 and 1 are rounded to them, and so is "
        "the loss ({calls}). Use {instead} no probabilities, or call .float() before",
        mended_by="fp32",
        others=_logarithms_of,
    ),
)


def _of_environment(report: Records) -> Iterator[Finding]:
    """Finds optimizers whose weights, gradients or state are in lower precision, and losses where no row says so."""
    environment = report.environment
    why = environment.get("no_cast_is_cached")
    if why and any(row.is_lower and row.casts and _is_product(row) for row in report.rows):
        yield _finding(
            "uncached weight",
            f"No cast of a weight is cached here: {why}. So each call casts its weight, and takes longer; `habana-mp "
            "doctor --assumptions` says more",
        )
    for optimizer, what in (environment.get("lower_state") or {}).items():
        yield _finding(
            "lower weights",
            f"{optimizer} steps {what}: small updates get lost there. Keep the model in float32: the lists lower what "
            "is computed with its weights",
        )
    updates = environment.get("lower_updates", 0)
    if updates > 1 and not environment.get("optimizer_steps"):  # one may merge or prune
        yield _finding(
            "lower weights",
            f"Values in lower precision were written into weights in float32 ({counted(updates, 'call')}): if that is "
            "the step of an optimizer of your own, put it under `with hmp.disable_casts():`, with all of its state",
        )
    is_told = any("losses" in row.noticed for row in report.rows)
    for place, precision in () if is_told else (environment.get("lower_losses") or {}).items():
        yield _finding(
            "loss in lower precision",
            f"The loss is in {precision} where a backward begins, at {place}. Compute it in float32: call .float() on "
            "what it is computed from",
        )
    for place in environment.get("unscaled") or ():
        yield _finding(
            "float16 without a scaler",
            f"The backward at {place} begins from a loss that was computed in float16 and is not scaled: small "
            'gradients become zero. Scale it with torch.amp.GradScaler, or convert with dtype="bf16"',
        )


#: What is lost if an operation runs in lower precision.
_RISKS = {
    "add": "a residual sum then loses small terms",
    "layer_norm": "its statistics stay in float32, its result is rounded to it",
    "log": "the logarithms of values near 1 are then rounded away",
    "log_softmax": "a loss that is computed from it is then rounded to it",
    "softmax": "small probabilities then keep few digits, and a loss must not be computed from them",
}


def _ping_pongs(report: Records, flow: _Flow) -> list[Finding]:
    """Finds calls between neighbours of the other precision: their input is cast, and their result is cast back. The
    advice to lower a call is given only if it saves a hundredth of all time."""
    rows = report.rows
    before: dict[int, Row] = {}
    after: dict[int, Row] = {}
    saved = [row.cast_seconds or 0.0 for row in rows]
    for edge in flow.edges:
        pair = source, target = rows[edge.source], rows[edge.target]
        if edge.casts and any(one.is_lower for one in pair) and any(one.precision == "fp32" for one in pair):
            before.setdefault(edge.target, source)
            after.setdefault(edge.source, target)
            saved[edge.source] += (target.cast_seconds or 0.0) * min(1.0, edge.casts / max(1, target.casts))

    def is_odd(number: int) -> bool:
        row = rows[number]
        if not row.is_lower:
            return _may_be_lowered(row)
        # A product should stay lower; so should any operation that takes longer than the casts around it.
        return not _is_product(row) and saved[number] >= (row.seconds or 0.0) and not _is_own_choice(row)

    found = []
    least = 0.01 * _Part(report, report.main_rows).seconds
    for part in _by_line(report, filter(is_odd, sorted(before.keys() & after.keys()))):
        row, number = part.rows[0], part.numbers[0]
        saves, other = sum(saved[one] for one in part.numbers), before[number].precision
        if row.is_lower or saves >= least:
            risk = "" if row.is_lower else f"; {_RISKS.get(row.operation, 'its result is then rounded to it')}"
            text = (
                f"{_named(part.rows)} runs in {row.precision} ({_because(row)}) between {before[number].operation} and "
                f"{after[number].operation} in {other}. Casts there and back take {_time(saves)}: they go if it runs "
                f"in {other} too{risk}"
            )
            rule = _rule_for(part.rows, "fp32" if row.is_lower else "lower")
            found.append(_finding("ping-pong", text, rule, rows=part.numbers, saves=saves))
    return sorted(found, key=lambda one: -(one.saves or 0.0))
