"""A report as a table, as a graph, and as a trace in time."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from habana_mp import _core
from habana_mp.policy.module_rules import KEPT
from habana_mp.policy.options import DETAILS
from habana_mp.reporting.records import Records, Row

#: The most rows that are printed of a report by modules or by lines.
_MOST_ROWS = 40

_COLOURS = {"bf16": "#8ecae6", "fp16": "#95d5b2", "fp32": "#ffb703", "unchanged": "#dddddd"}

#: The columns of words. The last ones need a report by modules, and one by lines.
_WORDS: dict[str, Callable[[Row], str]] = {
    "operation": lambda row: row.operation,
    "precision": lambda row: row.ran_in,
    "why": lambda row: f"listed, {row.rule}" if row.is_listed and row.rule not in (None, KEPT.source) else row.why,
    "module": lambda row: " ".join(filter(None, (row.module, "" if row.phase == "forward" else f"({row.phase})"))),
    "place": lambda row: row.place,
}
#: The columns of numbers: the field of a row, and the unit if it is no count. The last ones need times.
_NUMBERS = {
    "calls": ("calls", None),
    "casts": ("casts", None),
    "MB cast": ("bytes", 1e6),
    "ms": ("seconds", 1e-3),
    "ms of casts": ("cast_seconds", 1e-3),
}
#: The columns that a narrow terminal shortens, the first one first, and the least width of each.
_SHORTENED = {"why": 16, "operation": 18, "module": 12, "place": 12}
#: The columns that a terminal of fewer letters than `_WIDE` leaves out.
_LEFT_OUT, _WIDE = ("MB cast", "ms of casts"), 120

#: The codes of a terminal's colours, by precision.
_CODES = {"bf16": "34", "fp16": "34", "fp32": "33", "unchanged": "2"}


def _numbers(value_of: Callable[[str], float | None], columns: Iterable[str]) -> Iterator[str]:
    for name, unit in map(_NUMBERS.__getitem__, columns):
        value = value_of(name)
        yield "" if value is None else f"{value}" if unit is None else f"{value / unit:.3f}"


def _cells(report: Records, most: int | None = None) -> tuple[Sequence[Row], list[list[str]], int, list[str]]:
    """Returns the rows of a table; the cells of its head, of these rows, and of the sums; how many columns have words;
    and a line about the other rows, if there are any."""
    words = list(_WORDS)[: 3 + DETAILS.index(report.detail)]
    numbers = list(_NUMBERS)[: 3 if report.total("seconds") is None else 5]
    if most is not None and most < _WIDE:
        numbers = [column for column in numbers if column not in _LEFT_OUT]
    rows = report.rows if report.detail == "operations" else report.rows[:_MOST_ROWS]
    cells = [
        [*(_core.printable(_WORDS[column](row)) for column in words), *_numbers(partial(getattr, row), numbers)]
        for row in rows
    ]
    total = ["total", *("" for _ in words[1:]), *_numbers(lambda name: report.total(name) or 0, numbers)]
    left_out = len(report.rows) - len(rows)
    more = [f"... and {left_out} more rows: to_html() and to_json() have all"] if left_out else []
    return rows, [[*words, *numbers], *cells, total], len(words), more


def table(report: Records, most: int | None = None, *, coloured: bool = False) -> list[str]:
    """Returns the lines of the table, with at most this many letters if that is possible."""
    rows, cells, word_columns, more = _cells(report, most)
    columns = cells[0]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for column, least in _SHORTENED.items() if most is not None else ():
        if column in columns:
            number, excess = columns.index(column), sum(widths) + 2 * len(widths) - 2 - (most or 0)
            widths[number] -= max(0, min(excess, widths[number] - least))

    def line(cells: Sequence[str], precision: str = "") -> str:
        padded = [
            _shortened(cell, width, column).ljust(width) if number < word_columns else cell.rjust(width)
            for number, (cell, width, column) in enumerate(zip(cells, widths, columns, strict=True))
        ]
        if coloured and precision in _CODES:
            padded[1] = f"\x1b[{_CODES[precision]}m{padded[1]}\x1b[0m"
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    lines = [line(of_row, row.precision) for of_row, row in zip(cells[1:-1], rows, strict=True)]
    return [line(columns), rule, *lines, *more, rule, line(cells[-1])]


def _shortened(text: str, width: int, column: str) -> str:
    """Returns a text of at most this length. In a path the first parts become letters, but not numbers, until it fits.
    If that is not enough, or it is no path, the middle is left out."""
    if column in ("module", "place"):
        parts = re.split(r"([./])", text)
        for number in range(0, len(parts) - 1, 2):
            if len("".join(parts)) > width and not parts[number].isdigit():
                parts[number] = parts[number][:1]
        text = "".join(parts)
    if column == "why" and len(text) > width:
        text = text.partition(", ")[0]  # "listed", without the file
    if len(text) <= width:
        return text
    begin = (width - 1) // 6
    return f"{text[:begin]}…{text[len(text) - (width - 1 - begin) :]}"


def html(report: Records, words: tuple[str, ...]) -> str:
    """Returns the HTML for a notebook: the first lines, and the rows in a table. A bar shows the share of a row's time,
    or of its calls if no times were measured, in the largest one."""
    rows, cells, word_columns, more = _cells(report)
    columns = cells[0]
    bar = columns.index("ms" if "ms" in columns else "calls")
    values = [float(of_row[bar] or 0) for of_row in cells[1:-1]]

    def line(cells: Sequence[str], tag: str, style_of_bar: str = "") -> str:
        made = (
            f'<{tag} style="text-align: {"left" if number < word_columns else "right"}'
            f'{style_of_bar if number == bar else ""}">{escape(cell)}</{tag}>'
            for number, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    def style(row: Row, value: float) -> str:
        # Half transparent: the text can be read on a light page and on a dark one.
        colour, share = f"{_COLOURS.get(row.precision, '#dddddd')}80", 100 * value / (max(values) or 1)
        return f"; min-width: 8em; background: linear-gradient(to left, {colour} {share:.0f}%, transparent 0)"

    lines = [f"<p>{escape(line)}</p>" for line in words]
    if rows:
        styles = map(style, rows, values)
        body = "".join(line(of_row, "td", of_bar) for of_row, of_bar in zip(cells[1:-1], styles, strict=True))
        lines.append(f"<table><thead>{line(columns, 'th')}</thead><tbody>{body}</tbody>")
        lines.append(f"<tfoot>{line(cells[-1], 'th')}</tfoot></table>")
    return "".join((*lines, *(f"<p>{line}</p>" for line in more)))


# ---- graph ----------------------------------------------------------------------------------------------------------


def dot(report: Records) -> str:
    """Returns a graph for Graphviz: the operations by module, and the casts between them."""
    lines = ["digraph report {", "  rankdir=TB; node [shape=box, style=filled, fontname=sans]; edge [fontname=sans];"]
    by_module: dict[str | None, list[int]] = {}
    for number, row in enumerate(report.rows):
        by_module.setdefault(row.module, []).append(number)
    for index, (module, numbers) in enumerate(by_module.items()):
        if module is not None:
            lines.append(f"  subgraph cluster_{index} {{ label={_quoted(module)}; color=gray;")
        lines += [f"    {_node(number, report.rows[number])}" for number in numbers]
        if module is not None:
            lines.append("  }")
    for number, edge in enumerate(report.edges):
        if not edge.casts:
            lines.append(f"  r{edge.source} -> r{edge.target};")
            continue
        to = report.rows[edge.target].precision
        lines.append(f"  c{number} [label={_quoted(f'to {to}, {edge.casts} times')}, shape=oval, fillcolor=white];")
        lines.append(f"  r{edge.source} -> c{number} -> r{edge.target};")
    return "\n".join((*lines, "}", ""))


def _node(number: int, row: Row) -> str:
    place = f"\\n{_escaped(row.place)}" if row.place else ""
    label = f'"{_escaped(row.operation)} {row.ran_in}{place}\\n{_escaped(row.why)}"'
    return f"r{number} [label={label}, fillcolor={_quoted(_COLOURS.get(row.precision, '#dddddd'))}];"


def _escaped(text: str) -> str:
    return _core.printable(text).replace("\\", "\\\\").replace('"', '\\"')


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


# ---- time -----------------------------------------------------------------------------------------------------------


def chrome_trace(beside: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Returns the last watched calls as events in time, with those of a profiler's file if one is given."""
    trace: dict[str, Any] = {"displayTimeUnit": "ms", "traceEvents": []}
    if beside is not None:
        trace = json.loads(Path(beside).read_text("utf-8"))
        if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
            raise ValueError(f"{os.fspath(beside)}: it is no trace of torch.profiler: it has no list `traceEvents`")
    # The times in such a file are relative to this one.
    base = int(trace.setdefault("baseTimeNanoseconds", 0))
    trace["traceEvents"] += _events(base)
    return trace


def _events(base: int) -> Iterable[dict[str, Any]]:
    events, process = _core.watched_events(), os.getpid()
    records = _core.watched_calls()  # after the events: other threads may record a call meanwhile
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": "habana_mp"}}
    for record, module, begin, end, thread in events:
        event = {"ph": "X", "pid": process, "tid": thread, "ts": (begin - base) / 1e3, "dur": (end - begin) / 1e3}
        if record < 0:
            yield {**event, "cat": "module", "name": module}
            continue
        row = records[record]
        arguments = {name: row[name] for name in ("precision", "reason", "phase")}
        if row["file"] is not None:
            arguments["place"] = f"{row['file']}:{row['line']}"
        name, precision = row["operation"], row["precision"]
        yield {**event, "cat": f"operation,{precision}", "name": f"{name} ({precision})", "args": arguments}
