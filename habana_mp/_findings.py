"""What a report tells in words: how much ran lower, what did not and why, and what is worth a look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from habana_mp import ops

if TYPE_CHECKING:
    from habana_mp._report import Report, Row

#: How many lines there are at most, and how many of them name what was left in float32.
_MOST_LINES, _MOST_LEFT = 10, 3


@dataclass(frozen=True)
class Finding:
    """Something worth a look: rows, by their place in the report, and what they are about."""

    kind: str
    rows: tuple[int, ...]
    text: str
    #: Seconds of casts that would go, where that can be told.
    saves: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rows": list(self.rows)}


def of(report: Report) -> tuple[Finding, ...]:
    """All findings. Of each kind the dearest first, and the kinds by how odd they are."""
    found: list[Finding] = []
    for kind, applies, text in _KINDS:
        rows = [number for number, row in enumerate(report.rows) if applies(row)]
        found += [
            Finding(kind, tuple(numbers), text([report.rows[number] for number in numbers]))
            for numbers in _by_line(report, rows)
        ]
    return (*found, *_ping_pongs(report))


def in_words(report: Report) -> tuple[str, ...]:
    """The first lines of a report; none where nothing was called."""
    if not report.rows:
        return (_why_nothing_was_called(report),)
    lines = [_share(report), *_left_in_float32(report), *_dearest_casts(report)]
    shown: dict[str, int] = defaultdict(int)
    for finding in report.findings:
        shown[finding.kind] += 1
    seen: set[str] = set()
    for finding in report.findings:  # one line a kind: the odd ones shall not be crowded out
        if finding.kind not in seen and len(lines) < _MOST_LINES:
            more = shown[finding.kind] - 1
            lines.append(finding.text + (f" ({_count(more, 'more place')} like it)" if more else ""))
            seen.add(finding.kind)
    return tuple(lines)


# ---- how much -------------------------------------------------------------------------------------------------------


def _share(report: Report) -> str:
    """How much ran in the lower precision, by time where it was taken."""
    lower = [row for row in report.rows if row.is_lower]
    calls, all_calls = sum(row.calls for row in lower), report.total("calls")
    if not lower:
        return f"Nothing ran in lower precision: {_why_nothing_ran_lower(report)}"
    names = " and ".join(sorted({row.precision for row in lower}))
    time = report.total("seconds")
    if not time:
        return f"{_percent(calls / all_calls)} of {all_calls:,} calls of covered operations ran in {names}"
    share = sum(row.seconds or 0.0 for row in lower) / time
    return (
        f"{_percent(share)} of the time of covered operations ran in {names} "
        f"({calls:,} of {all_calls:,} calls; {_time(time)} in all)"
    )


def _why_nothing_was_called(report: Report) -> str:
    if report.configuration is None:
        return "Nothing ran in lower precision: not converted (call hmp.convert() before the model runs)"
    return "No covered operation was called where casts are on"


def _why_nothing_ran_lower(report: Report) -> str:
    """By the reason that most calls have."""
    by_reason: dict[str, int] = defaultdict(int)
    for row in report.rows:
        by_reason[row.reason] += row.calls
    reason = max(by_reason, key=lambda one: by_reason[one])
    rows = [row for row in report.rows if row.reason == reason]
    most = f"{_count(by_reason[reason], 'call')} {_left(rows[0])}{_at(rows)}"
    if report.configuration is None:
        return f"not converted now; {most}"
    if report.configuration.get("opt_level") == "O0":
        return 'opt_level="O0" casts nothing'
    within = report.configuration.get("within")
    if within is not None and all(row.module is None for row in report.rows):
        return f"no module ran, and convert was given within={within!r}; {most}"
    return most


def _left(row: Row) -> str:
    if row.precision == "unchanged":
        return f"left alone: {row.why}" if row.reason != "autocast_off" else f"left alone {row.why}"
    return f"in {row.precision}: {_because(row)}"


def _left_in_float32(report: Report) -> Iterator[str]:
    """What took the most time in float32, or was called most."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in report.rows:
        if row.precision == "fp32":
            groups[row.operation, _because(row)].append(row)
    if not groups:
        return
    time = report.total("seconds")

    def weight(rows: list[Row]) -> float:
        return sum(row.seconds or 0.0 for row in rows) if time else float(sum(row.calls for row in rows))

    named = sorted(groups.items(), key=lambda item: -weight(item[1]))[:_MOST_LEFT]
    parts = []
    for (operation, because), rows in named:
        much = _percent(weight(rows) / time) if time else _count(int(weight(rows)), "call")
        parts.append(f"{operation} {much} ({because}{_at(rows, ', ')})")
    yield f"In float32: {'; '.join(parts)}"


def _because(row: Row) -> str:
    if row.reason == "list" and row.rule is not None:
        return f"listed at {row.rule}"
    return row.why if row.rule is None or not row.rule.startswith("rule") else f"{row.why}, {row.rule}"


def _dearest_casts(report: Report) -> Iterator[str]:
    """Where casts take the most time."""
    time, casting = report.total("seconds"), report.total("cast_seconds")
    if not time or not casting:
        return
    row = max(report.rows, key=lambda one: one.cast_seconds or 0.0)
    share = f"Casts took {_percent(casting / time)} of it ({_count(report.total('casts'), 'cast')}, {_time(casting)})"
    yield (
        f"{share}, most for {row.operation}{_at([row])}: {_time(row.cast_seconds or 0.0)}, "
        f"{row.bytes / 1e6:.1f} MB in {_count(row.casts, 'cast')}"
    )


# ---- what is odd ----------------------------------------------------------------------------------------------------


def _by_line(report: Report, numbers: Iterable[int]) -> list[list[int]]:
    """Rows of one operation at one line belong together, whichever module ran."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number in numbers:
        row = report.rows[number]
        groups[row.operation, row.file, row.line].append(number)
    return sorted(groups.values(), key=lambda group: _cost([report.rows[number] for number in group]), reverse=True)


def _cost(rows: list[Row]) -> tuple[float, int]:
    return sum(row.seconds or 0.0 for row in rows), sum(row.calls for row in rows)


def _is_product(row: Row) -> bool:
    known = ops.row_of(row.operation)
    return known.is_product or known.o2 == "lower"


def _unkept(rows: list[Row]) -> str:
    reasons = ", ".join(dict.fromkeys(reason for row in rows for reason in row.refused))
    times = sum(sum(row.refused.values()) for row in rows)
    return f"{_named(rows)} casts a weight anew, {times} times: none of its casts is kept, since {reasons}"


def _no_kernel(rows: list[Row]) -> str:
    return f"{_named(rows)} ran in float32: {rows[0].why} ({_count(_calls(rows), 'call')})"


def _left_alone(rows: list[Row]) -> str:
    return f"{_named(rows)} was left alone {rows[0].why} ({_count(_calls(rows), 'call')})"


def _ineligible(rows: list[Row]) -> str:
    return (
        f"{_named(rows)} was left alone: it has an input in float64 or complex numbers, or none that is floating "
        f"({_count(_calls(rows), 'call')})"
    )


def _slower(rows: list[Row]) -> str:
    return f"{_named(rows)} was left in float32, since its shape is {rows[0].why} here ({_count(_calls(rows), 'call')})"


def _given(rows: list[Row]) -> str:
    return f"{_named(rows)} was left alone, since {rows[0].why} ({_count(_calls(rows), 'call')})"


def _elsewhere(rows: list[Row]) -> str:
    return f"{_named(rows)} was left alone: {rows[0].why} ({_count(_calls(rows), 'call')})"


def _scalar(rows: list[Row]) -> str:
    return f"{_named(rows)} has a number beyond the range of {rows[0].precision}, which was brought into it"


def _has(*reasons: str) -> Callable[[Row], bool]:
    return lambda row: row.reason in reasons


#: Kind, which rows, in which words; the oddest first.
_KINDS: tuple[tuple[str, Callable[[Row], bool], Callable[[list[Row]], str]], ...] = (
    ("unkept weight", lambda row: bool(row.refused), _unkept),
    ("no kernel", lambda row: row.reason == "no_kernel" and row.precision == "fp32", _no_kernel),
    ("protected", _has("autocast_off"), _left_alone),
    ("not eligible", lambda row: row.reason == "ineligible" and _is_product(row), _ineligible),
    ("disabled", lambda row: row.reason == "disabled" and _is_product(row), _left_alone),
    ("slower", _has("slower"), _slower),
    ("as given", _has("explicit_out", "explicit_dtype"), _given),
    ("elsewhere", _has("library", "distributed", "worker", "other_device"), _elsewhere),
    ("scalar", _has("scalar"), _scalar),
)


def _ping_pongs(report: Report) -> list[Finding]:
    """Calls between neighbours of the other precision, whose input is cast there and whose result is cast back."""
    ins, outs = defaultdict(list), defaultdict(list)
    for edge in report.edges:
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
        # A product is to be lower; so is all else that takes longer than the casts around it.
        if row.is_lower and (_is_product(row) or saves < (row.seconds or 0.0)):
            continue
        between.append((number, before[0], after[0].target, saves))
    found = []
    for numbers in _by_line(report, [one[0] for one in between]):
        parts = [one for one in between if one[0] in numbers]
        saves = sum(one[3] for one in parts)
        found.append(Finding("ping-pong", tuple(numbers), _ping_pong_text(report, parts, saves), saves))
    return sorted(found, key=lambda one: -(one.saves or 0.0))


def _are_opposite(row: Row, neighbour: Row) -> bool:
    return neighbour.precision == "fp32" if row.is_lower else neighbour.is_lower


def _part(row: Row, casts: int) -> float:
    """What so many of a row's casts take."""
    return (row.cast_seconds or 0.0) * min(1.0, casts / row.casts) if row.casts else 0.0


def _ping_pong_text(report: Report, parts: list[tuple[int, int, int, float]], saves: float) -> str:
    number, before, after, _ = parts[0]
    row, first, last = report.rows[number], report.rows[before], report.rows[after]
    rows = [report.rows[one[0]] for one in parts]
    return (
        f"{_named(rows)} runs in {row.precision} between {first.operation} and {last.operation} in {first.precision}: "
        f"casts there and back take {_time(saves)}, which would go with {row.operation} in {first.precision} too"
    )


# ---- words ----------------------------------------------------------------------------------------------------------


def _named(rows: list[Row]) -> str:
    return f"{rows[0].operation}{_at(rows)}"


def _at(rows: list[Row], before: str = " at ") -> str:
    """The place of the dearest row, and of how many modules it is the line."""
    row = max(rows, key=lambda one: (one.seconds or 0.0, one.calls))
    place = row.place or (f"in {row.module}" if row.module else "")
    if not place:
        return ""
    if not row.place and before == " at ":
        before = " "
    modules = list(dict.fromkeys(one.module for one in rows if one.module is not None))
    where = f", {modules[0]}" if row.place and len(modules) == 1 else ""
    return before + place + (f", in {len(modules)} modules" if len(modules) > 1 else where)


def _calls(rows: list[Row]) -> int:
    return sum(row.calls for row in rows)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


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
