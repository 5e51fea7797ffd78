"""A report as a table, as a graph, and as a trace in time."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from habana_mp import _core
from habana_mp.reporting.records import Records, Row

#: The most rows that are printed of a report by modules or by lines.
_MOST_ROWS = 40

_COLOURS = {"bf16": "#8ecae6", "fp16": "#95d5b2", "fp32": "#ffb703", "unchanged": "#dddddd"}


def _columns(report: Records) -> tuple[tuple[str, ...], int]:
    """Returns the names of a table's columns, and how many of them hold words."""
    words = ["operation", "precision", "why"]
    if report.detail != "operations":
        words.append("module")
    if report.detail == "lines":
        words.append("place")
    numbers = ["calls", "casts", "MB cast"]
    if report.total("seconds") is not None:
        numbers += ["ms", "ms of casts"]
    return (*words, *numbers), len(words)


def _cells(row: Row, columns: Sequence[str]) -> list[str]:
    cells = {
        "operation": row.operation,
        "precision": row.ran_in,
        "why": row.why if not row.is_listed or row.rule is None else f"listed, {row.rule}",
        "module": " ".join(filter(None, (row.module, "" if row.phase == "forward" else f"({row.phase})"))),
        "place": row.place,
        "calls": f"{row.calls}",
        "casts": f"{row.casts}",
        "MB cast": f"{row.bytes / 1e6:.3f}",
        "ms": "" if row.seconds is None else f"{1e3 * row.seconds:.3f}",
        "ms of casts": "" if row.cast_seconds is None else f"{1e3 * row.cast_seconds:.3f}",
    }
    return [_core.printable(cells[column]) for column in columns]


def _total(report: Records, columns: Sequence[str]) -> list[str]:
    totals = {
        "operation": "total",
        "calls": f"{report.total('calls')}",
        "casts": f"{report.total('casts')}",
        "MB cast": f"{report.total('bytes') / 1e6:.3f}",
        "ms": f"{1e3 * (report.total('seconds') or 0.0):.3f}",
        "ms of casts": f"{1e3 * (report.total('cast_seconds') or 0.0):.3f}",
    }
    return [totals.get(column, "") for column in columns]


def _shown(report: Records) -> tuple[Sequence[Row], int]:
    rows = report.rows if report.detail == "operations" else report.rows[:_MOST_ROWS]
    return rows, len(report.rows) - len(rows)


#: The columns that a narrow terminal shortens, the first one first, and the least width of each.
_SHORTENED = {"why": 16, "operation": 18, "module": 12, "place": 12}
#: The columns that a terminal of fewer letters than `_WIDE` leaves out.
_LEFT_OUT, _WIDE = ("MB cast", "ms of casts"), 120

#: The codes of a terminal's colours, by precision.
_CODES = {"bf16": "34", "fp16": "34", "fp32": "33", "unchanged": "2"}


def table(report: Records, most: int | None = None, *, coloured: bool = False) -> list[str]:
    """Returns the lines of the table, with at most this many letters if that is possible."""
    columns, word_columns = _columns(report)
    if most is not None and most < _WIDE:
        columns = tuple(column for column in columns if column not in _LEFT_OUT)
    rows, left_out = _shown(report)
    table_rows = [_cells(row, columns) for row in rows]
    total = _total(report, columns)
    widths = [max(map(len, column)) for column in zip(columns, *table_rows, total, strict=True)]
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
    more = [f"... and {left_out} more rows: to_html() and to_json() have all"] if left_out else []
    lines = [line(cells, row.precision) for cells, row in zip(table_rows, rows, strict=True)]
    return [line(columns), rule, *lines, *more, rule, line(total)]


def _shortened(text: str, width: int, column: str) -> str:
    """Returns a text of at most this length. In a path the first parts become letters, but not numbers, until it fits.
    If that is not enough, or it is no path, the middle is left out."""
    if column in ("module", "place"):
        parts = re.split(r"([./])", text)
        for number in range(0, len(parts) - 1, 2):
            if len("".join(parts)) > width and not parts[number].isdigit():
                parts[number] = parts[number][:1]
        text = "".join(parts)
    if len(text) <= width:
        return text
    begin = (width - 1) // 6
    return f"{text[:begin]}…{text[len(text) - (width - 1 - begin) :]}"


def html(report: Records, words: tuple[str, ...]) -> str:
    """Returns the HTML for a notebook: the first lines, and the rows in a table."""
    columns, word_columns = _columns(report)
    rows, left_out = _shown(report)
    lines = [f"<p>{escape(line)}</p>" for line in words]

    def line(cells: Sequence[str], tag: str) -> str:
        sides = ["left" if number < word_columns else "right" for number in range(len(cells))]
        made = (
            f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>"

    if rows:
        body = "".join(line(_cells(row, columns), "td") for row in rows)
        lines.append(f"<table><thead>{line(columns, 'th')}</thead><tbody>{body}</tbody>")
        lines.append(f"<tfoot>{line(_total(report, columns), 'th')}</tfoot></table>")
    if left_out:
        lines.append(f"<p>... and {left_out} more rows: to_html() and to_json() have all</p>")
    return "".join(lines)


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
    records, process = _core.watched_calls(), os.getpid()
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": "habana_mp"}}
    for record, module, begin, end, thread in _core.watched_events():
        event = {"ph": "X", "pid": process, "tid": thread, "ts": (begin - base) / 1e3, "dur": (end - begin) / 1e3}
        if record < 0:
            yield {**event, "cat": "module", "name": module}
            continue
        if record >= len(records):  # recorded by another thread in the meantime
            continue
        row = records[record]
        arguments = {name: row[name] for name in ("precision", "reason", "phase")}
        if row["file"] is not None:
            arguments["place"] = f"{row['file']}:{row['line']}"
        name, precision = row["operation"], row["precision"]
        yield {**event, "cat": f"operation,{precision}", "name": f"{name} ({precision})", "args": arguments}
