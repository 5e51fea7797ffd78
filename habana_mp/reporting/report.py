"""Reports of the calls so far: their precision, place, reason and cost."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

import torch

import habana_mp
from habana_mp import _core
from habana_mp.common.computed_once import computed_once
from habana_mp.policy.in_force import configuration, forget_earlier_lists, places_in_lists
from habana_mp.reporting import findings, pictures

Detail = Literal["operations", "modules", "lines"]
DETAILS: tuple[Detail, ...] = ("operations", "modules", "lines")

_FORMAT, _VERSION = "habana-mp report", 1
_Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Row:
    """The calls of one operation with one outcome: one precision, one reason, and one place if the report has places.
    ``unchanged`` stands for calls that were left alone."""

    operation: str
    precision: str
    calls: int
    casts: int
    bytes: int
    reason: str = ""
    #: The list and line, or the rule, behind the reason.
    rule: str | None = None
    module: str | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None
    #: ``forward``, ``backward``, or ``traced`` for calls that a compiler traced.
    phase: str = "forward"
    #: The number of times that a cached cast of a weight was used.
    hits: int = 0
    #: The number of casts of weights that are too small to be cached while they are trained.
    small: int = 0
    #: The time of the calls, without covered calls inside of them; and the part of it that their casts took.
    seconds: float | None = None
    cast_seconds: float | None = None
    #: The position of the row in the order of first calls.
    order: int = 0
    #: The number of weights without a cached cast, by reason.
    refused: Mapping[str, int] = field(default_factory=dict, hash=False)
    #: What was noticed about values: the ``largest count`` and ``largest angle`` that were rounded, and the number of
    #: calls that were ``with float64``, ``in lower statistics``, returned ``losses``, or returned values that were
    #: ``carried`` to the next step.
    noticed: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def why(self) -> str:
        """The reason in words."""
        return REASONS.get(self.reason, self.reason)

    @property
    def casts_up(self) -> int:
        return self.casts if self.precision == "fp32" else 0

    @property
    def casts_down(self) -> int:
        return self.casts - self.casts_up

    @property
    def is_lower(self) -> bool:
        return self.precision in ("bf16", "fp16")

    @property
    def place(self) -> str:
        """File and line in a short form; empty if they are unknown."""
        return "" if self.file is None else f"{_shown(self.file)}:{self.line}"

    def to_dict(self) -> dict[str, Any]:
        found = {**asdict(self), "refused": dict(self.refused), "noticed": dict(self.noticed)}
        return {**found, "why": self.why, "casts_up": self.casts_up, "casts_down": self.casts_down}


#: The meaning of each reason, in the words of the log.
REASONS: dict[str, str] = dict(_core.reasons)


def _shown(file: str) -> str:
    """Returns an installed file relative to site-packages, and a file in the working directory relative to that."""
    _, installed, rest = file.rpartition("/site-packages/")
    if installed:
        return rest
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file


@dataclass(frozen=True)
class KeptWeights:
    """The cached casts of weights: how often they were used, and the memory that they take now.

    ``refused`` counts the uses of weights whose casts could not be cached: their memory had other owners too, or the
    limit was reached. Such a weight was cast for the call, as without a cache. ``reasons`` has the numbers by reason.
    ``refresh_seconds`` is the time of casts that were made again after an optimizer's step. The time of a cast that a
    call made again belongs to that call.
    """

    hits: int = 0
    refreshes: int = 0
    refreshed_bytes: int = 0
    refresh_seconds: float = 0.0
    refused: int = 0
    weights: int = 0
    packed: int = 0
    bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        reasons = ", ".join(f"{reason}: {times}" for reason, times in self.reasons.items())
        size = f"{self.bytes / 1e6:.3f} MB, {self.packed} packed"
        again = f" ({self.refreshed_bytes / 1e6:.3f} MB)" if self.refreshes else ""
        return (
            f"kept casts of weights: {self.weights} ({size}), used {self.hits} times, "
            f"refreshed {self.refreshes} times{again}, not kept {self.refused} times"
            + (f" ({reasons})" if reasons else "")
        )


@dataclass(frozen=True)
class ModuleRow:
    """A module that ran: the number of its calls, and their total time from beginning to end."""

    path: str
    kind: str
    calls: int
    seconds: float


@dataclass(frozen=True)
class Edge:
    """Results of one row's calls that went into another row's calls. ``casts``: how many of them had to be cast."""

    source: int
    target: int
    calls: int
    casts: int


#: The types that a field of a report may have in JSON, by its annotation.
_KINDS: dict[str, Any] = {
    "str": str,
    "str | None": str | None,
    "int": int,
    "int | None": int | None,
    "float": int | float,
    "float | None": int | float | None,
    "Mapping[str, int]": Mapping,
    "Mapping[str, float]": Mapping,
    "dict[str, int]": Mapping,
}
_LARGEST = 2**63

_Part = TypeVar("_Part", Row, KeptWeights, ModuleRow, Edge)


def _checked(part: _Part) -> _Part:
    """Returns a part of a report that was read. Raises TypeError if a field has a value of another type."""
    for one in fields(part):
        value, kind = getattr(part, one.name), str(one.type)
        if not isinstance(value, _KINDS[kind]) or (isinstance(value, int) and abs(value) >= _LARGEST):
            raise TypeError(f"`{one.name}` must be {kind}; got {value!r:.40}")
    return part


@dataclass(frozen=True, repr=False)
class Report:
    """The rows of a report, the busiest first. ``print`` shows the first lines in words, then a table."""

    rows: tuple[Row, ...]
    weights: KeptWeights = KeptWeights()
    detail: Detail = "operations"
    modules: tuple[ModuleRow, ...] = ()
    edges: tuple[Edge, ...] = ()
    #: The configuration of convert, None if it is not in force; and the environment of the calls.
    configuration: Mapping[str, Any] | None = field(default=None, hash=False)
    environment: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: The seconds in which calls were watched; None if they were only counted.
    seconds: float | None = field(default=None, compare=False)
    ranks: int = 1
    #: True if this process made it from its own calls.
    is_live: bool = field(default=False, compare=False)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @computed_once
    def findings(self) -> tuple[findings.Finding, ...]:
        """The findings, the most unusual kinds first, and the most expensive finding of each kind first."""
        return findings.of(self)

    @computed_once
    def words(self) -> tuple[str, ...]:
        """The first lines: what ran in lower precision, what did not and why, and where casts cost most."""
        return findings.in_words(self)

    def total(self, name: str) -> Any:
        """Returns the sum over the rows. A sum of times is None if no row has one."""
        values = [getattr(row, name) for row in self.rows if getattr(row, name) is not None]
        return sum(values) if values or not name.endswith("seconds") else None

    def as_dicts(self) -> list[dict[str, Any]]:
        """Returns the rows as plain data."""
        return [row.to_dict() for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain data; :meth:`from_dict` reads it."""
        by_precision: dict[str, dict[str, Any]] = {}
        for precision in dict.fromkeys(row.precision for row in self.rows):
            part = replace(self, rows=tuple(row for row in self.rows if row.precision == precision))
            by_precision[precision] = {"calls": part.total("calls"), "seconds": part.total("seconds")}
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "detail": self.detail,
            "environment": dict(self.environment),
            "configuration": None if self.configuration is None else dict(self.configuration),
            "seconds": self.seconds,
            "ranks": self.ranks,
            "words": list(self.words),
            "totals": {
                **{name: self.total(name) for name in ("calls", "casts", "bytes", "hits", "seconds", "cast_seconds")},
                "by_precision": by_precision,
            },
            "rows": self.as_dicts(),
            "modules": [
                {"path": one.path, "class": one.kind, "calls": one.calls, "seconds": one.seconds}
                for one in self.modules
            ],
            "edges": [
                {"from": one.source, "to": one.target, "calls": one.calls, "casts": one.casts} for one in self.edges
            ],
            "findings": [one.to_dict() for one in self.findings],
            "weights": asdict(self.weights),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Report:
        """Returns the report from a result of :meth:`to_dict`.

        Raises:
            ValueError: it is not a report, or one of another version of the format.
        """
        if not isinstance(content, Mapping) or content.get("format") != _FORMAT:
            raise ValueError(f'it is no report: a report has "format": "{_FORMAT}"')
        if content.get("version") != _VERSION:
            raise ValueError(
                f"it is a report of version {content.get('version')} of the format; this package reads {_VERSION}"
            )
        try:
            return cls._read(content)
        except KeyError as error:
            raise ValueError(f"it is no whole report: it has no {error}") from None
        except (AttributeError, TypeError) as error:
            raise ValueError(f"it is no whole report: {error}") from None

    @classmethod
    def _read(cls, content: Mapping[str, Any]) -> Report:
        names = {one.name for one in fields(Row)}
        return cls(
            rows=tuple(
                _checked(Row(**{name: value for name, value in row.items() if name in names}))
                for row in content["rows"]
            ),
            weights=_checked(KeptWeights(**content["weights"])),
            detail=content["detail"],
            modules=tuple(
                _checked(ModuleRow(one["path"], one["class"], one["calls"], one["seconds"]))
                for one in content["modules"]
            ),
            edges=tuple(_checked(Edge(one["from"], one["to"], one["calls"], one["casts"])) for one in content["edges"]),
            configuration=content["configuration"],
            environment=content["environment"],
            seconds=content["seconds"],
            ranks=content["ranks"],
        )

    @classmethod
    def from_json(cls, path: _Path) -> Report:
        """Returns the report from a file that :meth:`to_json` wrote.

        Raises:
            ValueError: it is not a report, or one of another version of the format; the message names the file.
            OSError: the file cannot be read.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text("utf-8")))
        except json.JSONDecodeError as error:
            raise ValueError(f"{os.fspath(path)}: it is no JSON: {error}") from None
        except RecursionError:
            raise ValueError(f"{os.fspath(path)}: it is no report: it is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None

    def to_json(self, path: _Path) -> None:
        """Writes the report as JSON."""
        _write(path, json.dumps(self.to_dict(), indent=1, ensure_ascii=False))

    def to_html(self, path: _Path) -> None:
        """Writes the report as a page for a browser, in one file that loads no other."""
        from habana_mp.reporting.page import html_page

        _write(path, html_page(self.to_dict()))

    def to_dot(self, path: _Path) -> None:
        """Writes the operations, and the results that went from one to another, for Graphviz."""
        _write(path, pictures.dot(self))

    def to_chrome_trace(self, path: _Path, *, beside: _Path | None = None) -> None:
        """Writes the last calls as a trace in time, for Perfetto or chrome://tracing.

        Args:
            path: The file to write.
            beside: A trace of ``torch.profiler`` (``export_chrome_trace``) whose events are included in the file.
        """
        if not self.is_live:
            raise ValueError("a report that was read or merged has no calls in time; write the trace where it was made")
        _write(path, json.dumps(pictures.chrome_trace(beside)))

    def to_dataframe(self) -> Any:
        """Returns the rows as a ``pandas.DataFrame``; pandas must be installed."""
        try:
            import pandas  # type: ignore[import-untyped]
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"to_dataframe() needs pandas, which is not installed (pip install pandas): {error}", name=error.name
            ) from error
        return pandas.DataFrame(self.as_dicts())

    def __str__(self) -> str:
        table = pictures.table(self) if self.rows else []
        lines = [*self.words, *([""] if self.words and table else []), *table]
        if self.weights != KeptWeights():
            lines.append(str(self.weights))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Report of {self.total('calls'):,} calls by {self.detail}; print() shows it>"

    def _repr_html_(self) -> str | None:
        """Returns the HTML for a notebook, or None if :meth:`show` has just shown it."""
        was_shown = vars(self).pop("_was_shown", False)
        return None if was_shown else pictures.html(self)

    def show(self, file: TextIO | None = None) -> None:
        """Prints the report, or shows it in a notebook."""
        if file is not None or not _is_notebook():
            print(self, file=file)
            return
        sys.modules["IPython"].display.display(self)
        # Otherwise a cell whose last line is the report would show it a second time.
        vars(self)["_was_shown"] = True

    def __rich__(self) -> Any:
        """Returns what `rich.print` shows."""
        return pictures.rich_table(self)


def _is_notebook() -> bool:
    """True in a notebook, and in other front ends of Jupyter that show HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _write(path: _Path, text: str) -> None:
    # A file name that is not text contains surrogates.
    Path(path).write_bytes(text.encode("utf-8", "backslashreplace"))


def merged(reports: Iterable[Report], *, ranks: int | None = None) -> Report:
    """Merges the reports of several processes that ran the same code: rows with the same place and outcome become one.
    ``ranks`` is the number of ranks, by default the sum over the reports."""
    reports = list(reports)
    first = reports[0]
    if len(reports) == 1 and ranks in (None, first.ranks):
        return first
    rows: dict[tuple[Any, ...], Row] = {}
    edges: dict[tuple[Any, Any], list[int]] = {}
    modules: dict[str, ModuleRow] = {}
    for report in reports:
        keys = [_key(row) for row in report.rows]
        for key, row in zip(keys, report.rows, strict=True):
            rows[key] = _sum(rows[key], row) if key in rows else replace(row, order=len(rows))
        for edge in report.edges:
            counts = edges.setdefault((keys[edge.source], keys[edge.target]), [0, 0])
            counts[0] += edge.calls
            counts[1] += edge.casts
        for one in report.modules:
            known = modules.get(one.path, replace(one, calls=0, seconds=0.0))
            modules[one.path] = replace(known, calls=known.calls + one.calls, seconds=known.seconds + one.seconds)
    places = {key: number for number, key in enumerate(rows)}
    return replace(
        first,
        rows=tuple(rows.values()),
        weights=_sum_of_weights([report.weights for report in reports]),
        edges=tuple(Edge(places[a], places[b], *counts) for (a, b), counts in edges.items()),
        modules=tuple(modules.values()),
        seconds=max((one.seconds for one in reports if one.seconds is not None), default=None),  # in parallel
        ranks=sum(report.ranks for report in reports) if ranks is None else ranks,
        is_live=False,
    )


_COUNTED = ("calls", "casts", "bytes", "hits", "small", "seconds", "cast_seconds")


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(
        getattr(row, one.name) for one in fields(row) if one.name not in (*_COUNTED, "order", "refused", "noticed")
    )


def _sum(a: Row, b: Row) -> Row:
    counts = {name: _added(getattr(a, name), getattr(b, name)) for name in _COUNTED}
    return replace(a, **counts, refused=_added_up([a.refused, b.refused]), noticed=_joined(a.noticed, b.noticed))


def _joined(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    """Returns what two rows noticed: the sums of their counts, and the larger of their largest values."""
    return {
        name: max(a.get(name, 0), b.get(name, 0)) if name.startswith("largest") else a.get(name, 0) + b.get(name, 0)
        for name in (*a, *(one for one in b if one not in a))
    }


def _added(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


def _added_up(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for one in counts:
        for name, count in one.items():
            sums[name] += count
    return dict(sums)


def _sum_of_weights(all_kept: list[KeptWeights]) -> KeptWeights:
    counts = {name: sum(getattr(one, name) for one in all_kept) for name in _COUNTS_OF_WEIGHTS}
    return KeptWeights(**counts, reasons=_added_up(one.reasons for one in all_kept))


_COUNTS_OF_WEIGHTS = (
    "hits",
    "refreshes",
    "refreshed_bytes",
    "refresh_seconds",
    "refused",
    "weights",
    "packed",
    "bytes",
)

#: The rule behind a reason that is not a list.
_RULES = {
    **{"widest": "rule 2", "in_place": "rule 3", "first_input": "rule 4", "parts": "rule 5"},
    **dict.fromkeys(("ineligible", "explicit_out", "explicit_dtype", "view"), "rule 6"),
    **dict.fromkeys(("no_kernel", "sums"), "rule 8"),
    **{"scalar": "rule 9", "autocast_off": "rule 10"},
    **dict.fromkeys(("construction", "optimizer_step", "worker", "distributed", "library", "state"), "rule 11"),
    **{"op_wrap": "op_wrap", "slower": "skip_slower", "disabled": "disable_casts"},
}


class Stopwatch:
    """Measures for how long calls were watched in total."""

    def __init__(self) -> None:
        self._before = 0.0
        self._began: float | None = None

    def run(self, *, running: bool) -> None:
        self._before = self.seconds
        self._began = time.perf_counter() if running else None

    def reset(self) -> None:
        self._before = 0.0
        self.run(running=self._began is not None)
        self._before = 0.0

    @property
    def seconds(self) -> float:
        return self._before + (0.0 if self._began is None else time.perf_counter() - self._began)


stopwatch = Stopwatch()


def _rule_of(operation: str, precision: str, reason: str) -> str | None:
    if reason not in ("list", "no_product"):
        return _RULES.get(reason)
    return " or ".join(places_in_lists(operation, precision if reason == "list" else None)) or None


def _plain_name(operation: str) -> str:
    """Returns the name in lists and reports: `*` is mul there. mul_ is another operation."""
    return operation.strip("_") if operation.startswith("__") else operation


def current() -> Report:
    """Returns a report of the core's counts, with one row for each operation, precision, reason, and place."""
    records, modules = _core.watched_calls(), _core.watched_modules()
    counted = _counted()
    watched = [_row_of(number, record, counted) for number, record in enumerate(records)]
    for row in watched:
        counted[row.operation, row.precision, row.reason].take_away(row)
    rows, places = _one_each(watched)
    rows += [one.row(key, order=len(records) + number) for number, (key, one) in enumerate(counted.items()) if one]
    edges: dict[tuple[int, int], list[int]] = {}
    for number, record in enumerate(records):
        for source, calls, casts in record["from"]:
            sums = edges.setdefault((places[source], places[number]), [0, 0])
            sums[0] += calls
            sums[1] += casts
    ranked = sorted(range(len(rows)), key=lambda number: _rank(rows[number]))
    ranks = {number: rank for rank, number in enumerate(ranked)}
    return Report(
        rows=tuple(rows[number] for number in ranked),
        weights=KeptWeights(**_core.weights_statistics()),
        detail="lines" if any(row.file is not None for row in rows) else "modules" if records else "operations",
        modules=tuple(ModuleRow(path, kind, calls, whole / 1e9) for path, kind, calls, whole in modules if calls),
        edges=tuple(Edge(ranks[a], ranks[b], *counts) for (a, b), counts in edges.items()),
        configuration=configuration(),
        seconds=stopwatch.seconds if records else None,
        environment=_environment(),
        is_live=True,
    )


@dataclass
class _Counts:
    """The counts of one operation, precision and reason, and the rule behind the reason."""

    rule: str | None = None
    calls: int = 0
    casts: int = 0
    bytes: int = 0
    small: int = 0

    def __bool__(self) -> bool:
        return any((self.calls, self.casts, self.bytes, self.small))

    def take_away(self, row: Row) -> None:
        self.calls -= row.calls
        self.casts -= row.casts
        self.bytes -= row.bytes
        self.small -= row.small

    def row(self, key: tuple[str, str, str], order: int) -> Row:
        operation, precision, reason = key
        return Row(
            operation, precision, self.calls, self.casts, self.bytes, reason, self.rule, small=self.small, order=order
        )


def _counted() -> dict[tuple[str, str, str], _Counts]:
    counted: dict[tuple[str, str, str], _Counts] = defaultdict(_Counts)
    for name, _, precision, reason, calls, casts, size, small in _core.counts():
        one = counted[_plain_name(name), precision, reason]
        one.rule = one.rule or _rule_of(name, precision, reason)
        one.calls += calls
        one.casts += casts
        one.bytes += size
        one.small += small
    return counted


def _row_of(number: int, record: dict[str, Any], counted: Mapping[tuple[str, str, str], _Counts]) -> Row:
    key = _plain_name(record["operation"]), record["precision"], record["reason"]
    same = (
        "calls",
        "casts",
        "bytes",
        "reason",
        "phase",
        "module",
        "file",
        "line",
        "function",
        "hits",
        "small",
        "refused",
        "noticed",
    )
    return Row(
        operation=key[0],
        precision=key[1],
        rule=counted[key].rule,
        seconds=record["nanoseconds"] / 1e9,
        cast_seconds=record["cast_nanoseconds"] / 1e9,
        order=number,
        **{name: record[name] for name in same},
    )


def _one_each(rows: list[Row]) -> tuple[list[Row], list[int]]:
    """Joins the rows of several instructions of one line. Returns the joined rows, and the new index of each row."""
    joined: dict[tuple[Any, ...], int] = {}
    made: list[Row] = []
    places = []
    for row in rows:
        place = joined.setdefault(_key(row), len(made))
        if place == len(made):
            made.append(row)
        else:
            made[place] = _sum(made[place], row)
        places.append(place)
    return made, places


def _rank(row: Row) -> tuple[Any, ...]:
    return (-(row.seconds or 0.0), -row.calls, row.operation, row.precision, row.reason, row.order)


def _environment() -> dict[str, Any]:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return {
        "habana_mp": habana_mp.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "script": None if main is None else _shown(main),
    }


def _processor() -> str:
    """Returns the name of the processor, as Linux gives it."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def reset() -> None:
    """Resets all counts to zero."""
    _core.reset_counts()
    _core.reset_watch()
    _core.weights_reset_statistics()
    stopwatch.reset()
    forget_earlier_lists()
