"""Compares two reports."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from habana_mp import _core
from habana_mp.reporting.records import counted
from habana_mp.reporting.report import Report

_Row = dict[str, Any]

#: The forms of a report that :func:`compare` accepts.
Given = Report | dict[str, Any] | str | os.PathLike[str]

#: A call is slower if it takes this many times as long, and the difference over all its calls is at least this share of
#: the whole time.
_TIMES, _SHARE = 1.2, 0.01

#: The fields by which a place is found in another report, with its number among the places that agree in them. The line
#: is not among them: scripts are edited.
_SEEN_AGAIN_BY = ("module", "operation", "phase")

#: What rows of one place agree in if they are a pair: all of these, or else fewer.
_AGREE_IN = (("precision", "reason", "why", "rule"), ("precision", "reason"), ("precision",), ())

#: The line of a list file, at the end of a rule.
_LINE = re.compile(r":\d+$")

FORMAT, VERSION = "habana-mp comparison", 1


@dataclass(frozen=True)
class Pair:
    """Two rows, one of each report, that stand for the same calls."""

    a: _Row
    b: _Row
    #: The number of this place among those with the same operation in the same module and phase, from 1.
    occurrence: int
    #: ``"slower"``, ``"faster"``, or None.
    speed: str | None

    @property
    def change(self) -> str | None:
        """``"precision"``, ``"reason"``, ``"casts"`` if as many calls cast more or fewer tensors, or None."""
        if self.a["precision"] != self.b["precision"]:
            return "precision"
        if _reason(self.a) != _reason(self.b):
            return "reason"
        # The processor decides how often a weight is cast that no cache saves.
        of_a, of_b = (row["casts"] - row["needed"] for row in (self.a, self.b))
        return "casts" if self.a["calls"] == self.b["calls"] and of_a != of_b else None


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two reports, a and b. Each row of both is in one pair, in ``gone`` (rows of a), or in ``new`` (rows of b).
    ``print`` shows the differences."""

    pairs: tuple[Pair, ...]
    gone: tuple[_Row, ...]
    new: tuple[_Row, ...]

    @property
    def differs(self) -> bool:
        """True if a row is new or gone, or has another precision, another reason, or other casts in as many calls.
        Times and numbers of calls do not count: no two runs take the same time, and a longer run has more calls."""
        return bool(self.gone or self.new or any(pair.change for pair in self.pairs))

    def changed(self, change: str | None) -> list[Pair]:
        """Returns the pairs with this change, in the order of b."""
        return [pair for pair in self.pairs if pair.change == change]

    def of_speed(self, speed: str) -> list[Pair]:
        """Returns the pairs that are ``"slower"`` or ``"faster"`` per call, the largest difference in time first."""
        found = [pair for pair in self.pairs if pair.speed == speed]
        return sorted(found, key=lambda pair: -_difference(pair.a, pair.b))

    def calls(self) -> tuple[int, int]:
        """Returns the number of calls of a, and of b."""
        of_a = sum(row["calls"] for row in (*(pair.a for pair in self.pairs), *self.gone))
        return of_a, sum(row["calls"] for row in (*(pair.b for pair in self.pairs), *self.new))

    def to_dict(self) -> dict[str, Any]:
        """Returns the comparison as plain data, for JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "differs": self.differs,
            "calls": dict(zip("ab", self.calls(), strict=True)),
            "pairs": [{**vars(pair), "change": pair.change} for pair in self.pairs],
            "gone": list(self.gone),
            "new": list(self.new),
        }

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def text(self, *, times: bool = False) -> str:
        """Returns the differences in words. ``times``: also those in time per call, the slow first calls included."""
        precision, reason, casts = map(self.changed, ("precision", "reason", "casts"))
        counts = {
            "the same": len(self.changed(None)),
            "in another precision": len(precision),
            "for another reason": len(reason),
            "with other casts": len(casts),
            "new": len(self.new),
            "gone": len(self.gone),
        }
        lines = ["rows: " + ", ".join(f"{n} {name}" for name, n in counts.items() if n or name == "the same")]
        of_a, of_b = self.calls()
        if any(pair.a["calls"] != pair.b["calls"] for pair in self.pairs):
            lines.append(f"calls: {of_a:,} in a, {of_b:,} in b")
        sections = {
            "in another precision": _told(precision, lambda a, b: f"{_outcome(a)} -> {_outcome(b)}"),
            "for another reason": _told(reason, lambda a, b: f"{_outcome(a)} -> {_outcome(b)}"),
            "more or fewer casts in as many calls": _told(casts, lambda a, b: f"{a['casts']:,} -> {b['casts']:,}"),
            "new in b": [f"{_named(row)}: {_outcome(row)}, {counted(row['calls'], 'call')}" for row in self.new],
            "gone from a": [f"{_named(row)}: {_outcome(row)}, {counted(row['calls'], 'call')}" for row in self.gone],
        }
        for speed in ("slower", "faster") if times else ():
            sections[f"{speed}, per call"] = _told(self.of_speed(speed), _times)
        for title, texts in sections.items():
            lines += ["", f"{title}:", *(f"  {text}" for text in texts)] if texts else []
        return "\n".join(map(_core.printable, lines))


def compare(a: Given, b: Given) -> Comparison:
    """Compares two reports, given as results of ``hmp.report()``, their ``to_dict()``, or paths of their JSON files.

    Raises:
        TypeError: an argument of another type.
        ValueError: a dict or a file that does not hold a report, or two reports of different detail.
        OSError: a file that cannot be read.
    """
    one, other = _report(a, "a"), _report(b, "b")
    if one.detail != other.detail:
        raise ValueError(
            f"the reports must have the same detail; got {one.detail!r} in `a` and {other.detail!r} in `b`: make "
            "both with the same `report=` of convert, or `--detail`"
        )
    of_a, of_b = (sorted(report.as_dicts(), key=lambda row: row["order"]) for report in (one, other))
    least = _SHARE * math.fsum(row["seconds"] or 0.0 for row in (*of_a, *of_b)) / 2
    places_of_a = _places(of_a)
    pairs: dict[int, Pair] = {}  # by the identity of the row of b
    for place, rows in _places(of_b).items():
        left = places_of_a.get(place, [])
        for names in _AGREE_IN:
            for row in rows:
                alike = (i for i, one in enumerate(left) if all(one[name] == row[name] for name in names))
                if id(row) not in pairs and (found := next(alike, None)) is not None:
                    partner = left.pop(found)
                    pairs[id(row)] = Pair(partner, row, place[-1], _speed(partner, row, least))
    paired = {id(pair.a) for pair in pairs.values()}
    return Comparison(
        tuple(pairs[id(row)] for row in of_b if id(row) in pairs),
        gone=tuple(row for row in of_a if id(row) not in paired),
        new=tuple(row for row in of_b if id(row) not in pairs),
    )


def _report(given: Given, name: str) -> Report:
    if isinstance(given, dict):
        try:
            return Report.from_dict(given)
        except ValueError as error:
            raise ValueError(f"`{name}`: {error}") from None
    if isinstance(given, (str, os.PathLike)):
        return Report.from_json(given)
    if not isinstance(given, Report):
        what = "a report, its `to_dict()`, or the path of its JSON file"
        raise TypeError(f"`{name}` must be {what}; got {type(given).__name__}: {given!r}")
    return given


def _places(rows: Iterable[_Row]) -> dict[tuple[Any, ...], list[_Row]]:
    """Returns the rows of each place, in several precisions or for several reasons, by what finds it again."""
    found: dict[tuple[Any, ...], list[_Row]] = {}
    numbers: dict[tuple[Any, ...], dict[tuple[Any, ...], int]] = {}
    for row in rows:
        kind, line = (tuple(row[name] for name in names) for names in (_SEEN_AGAIN_BY, ("file", "line", "function")))
        of_kind = numbers.setdefault(kind, {})
        found.setdefault((*kind, of_kind.setdefault(line, len(of_kind) + 1)), []).append(row)
    return found


# ---- speed -----------------------------------------------------------------------------------------------------------


def _per_call(row: _Row) -> float:
    return float(row["seconds"] or 0.0) / max(1, int(row["calls"]))


def _difference(a: _Row, b: _Row) -> float:
    """Returns the difference in time over all calls. The number of calls is the mean of both runs."""
    return abs(_per_call(b) - _per_call(a)) * float(a["calls"] + b["calls"]) / 2


def _speed(a: _Row, b: _Row, least: float) -> str | None:
    if a["seconds"] is None or b["seconds"] is None or _difference(a, b) < least:
        return None
    of_a, of_b = _per_call(a), _per_call(b)
    return "slower" if of_b > _TIMES * of_a else "faster" if of_a > _TIMES * of_b else None


# ---- words -----------------------------------------------------------------------------------------------------------


def _told(pairs: Iterable[Pair], change: Callable[[_Row, _Row], str]) -> list[str]:
    return [f"{_named(pair.b, pair.occurrence)}: {change(pair.a, pair.b)}" for pair in pairs]


def _named(row: _Row, number: int = 1) -> str:
    words = [row["operation"]]
    words += [f"(#{number})"] if number > 1 else []
    words += [f"in {row['module']}"] if row["module"] else []
    words += [f"at {os.path.basename(row['file'])}:{row['line']}"] if row["file"] else []
    words += [row["phase"]] if row["phase"] != "forward" else []
    return " ".join(words)


def _reason(row: _Row) -> tuple[str, str]:
    """Returns the reason without the line of its list: names above it may have been added or removed."""
    return row["why"], _LINE.sub("", row["rule"] or "")


def _outcome(row: _Row) -> str:
    words = ", ".join(filter(None, (row["why"], row["rule"])))
    return f"{row['precision']} ({words})" if words else str(row["precision"])


def _times(a: _Row, b: _Row) -> str:
    times = f", {_per_call(b) / _per_call(a):.2f} times" if _per_call(a) else ""
    precisions = " -> ".join(dict.fromkeys((a["precision"], b["precision"])))
    return f"{_duration(_per_call(a))} -> {_duration(_per_call(b))}{times} ({precisions})"


def _duration(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
