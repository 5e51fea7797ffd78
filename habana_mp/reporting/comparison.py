"""Compares two reports."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from habana_mp import _core
from habana_mp.reporting.report import Report

_Row = dict[str, Any]

#: A report as :meth:`Report.to_dict` returns it.
Data = dict[str, Any]

#: The forms of a report that :func:`compare` accepts.
Given = Report | Data | str | os.PathLike[str]

#: A call is slower if it takes this many times as long, and the difference over all its calls is at least this share of
#: the whole time.
_TIMES, _SHARE = 1.2, 0.01

#: The fields that identify the place of a call. Rows that agree in them are one place, in several precisions or for
#: several reasons.
_PLACE = ("module", "file", "line", "function", "operation", "phase")

#: The fields that identify a place in another report. The line is not among them: scripts are edited.
_SEEN_AGAIN_BY = ("module", "operation", "phase")

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
    speed: str | None = None

    @property
    def change(self) -> str | None:
        """``"precision"``, ``"reason"``, ``"casts"`` if as many calls cast more or fewer tensors, or None."""
        if self.a["precision"] != self.b["precision"]:
            return "precision"
        if _compared(self.a) != _compared(self.b):
            return "reason"
        return "casts" if self.a["calls"] == self.b["calls"] and self.a["casts"] != self.b["casts"] else None

    def to_dict(self) -> dict[str, Any]:
        return {"a": self.a, "b": self.b, "occurrence": self.occurrence, "change": self.change, "speed": self.speed}


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
        return sorted((pair for pair in self.pairs if pair.speed == speed), key=lambda pair: -_weight(pair))

    def calls(self) -> tuple[int, int]:
        """Returns the number of calls of a, and of b."""
        pairs = self.pairs
        of_a = sum(pair.a["calls"] for pair in pairs) + sum(row["calls"] for row in self.gone)
        of_b = sum(pair.b["calls"] for pair in pairs) + sum(row["calls"] for row in self.new)
        return of_a, of_b

    def to_dict(self) -> dict[str, Any]:
        """Returns the comparison as plain data, for JSON."""
        of_a, of_b = self.calls()
        return {
            "format": FORMAT,
            "version": VERSION,
            "differs": self.differs,
            "calls": {"a": of_a, "b": of_b},
            "pairs": [pair.to_dict() for pair in self.pairs],
            "gone": list(self.gone),
            "new": list(self.new),
        }

    def __str__(self) -> str:
        lines = [self._counts()]
        of_a, of_b = self.calls()
        if any(pair.a["calls"] != pair.b["calls"] for pair in self.pairs):
            lines.append(f"calls: {of_a:,} in a, {of_b:,} in b; times are compared per call")
        for title, pairs in (
            ("in another precision", self.changed("precision")),
            ("for another reason", self.changed("reason")),
        ):
            lines += _section(title, [f"{_name(pair)}: {_outcome(pair.a)} -> {_outcome(pair.b)}" for pair in pairs])
        casts = [f"{_name(pair)}: {pair.a['casts']:,} -> {pair.b['casts']:,}" for pair in self.changed("casts")]
        lines += _section("more or fewer casts in as many calls", casts)
        for speed in ("slower", "faster"):
            lines += _section(f"{speed}, per call", [f"{_name(pair)}: {_times(pair)}" for pair in self.of_speed(speed)])
        for title, rows in (("new in b", self.new), ("gone from a", self.gone)):
            lines += _section(title, [f"{_place(row)}: {_outcome(row)}, {_calls(row['calls'])}" for row in rows])
        return "\n".join(map(_core.printable, lines))

    __repr__ = __str__

    def _counts(self) -> str:
        counts = {
            "the same": len(self.changed(None)),
            "in another precision": len(self.changed("precision")),
            "for another reason": len(self.changed("reason")),
            "with other casts": len(self.changed("casts")),
            "new": len(self.new),
            "gone": len(self.gone),
        }
        return "rows: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "the same")


def compare(a: Given, b: Given) -> Comparison:
    """Compares two reports, given as results of ``hmp.report()``, their ``to_dict()``, or paths of their JSON files.

    Raises:
        TypeError: an argument of another type.
        ValueError: a dict or a file that does not hold a report, or two reports of different detail.
        OSError: a file that cannot be read.
    """
    one, other = _data(a, "a"), _data(b, "b")
    if one["detail"] != other["detail"]:
        raise ValueError(
            f"the reports must have the same detail; got {one['detail']!r} in `a` and {other['detail']!r} in `b`: make "
            "both with the same `report=` of convert, or `--detail`"
        )
    return _compared_in_time(one["rows"], other["rows"])


def _compared_in_time(a: list[_Row], b: list[_Row]) -> Comparison:
    """Compares rows. The result has them in the order of their first calls."""
    pairs: list[Pair] = []
    gone: list[_Row] = []
    new: list[_Row] = []
    for place_a, place_b, number in _aligned(_places(a), _places(b)):
        for row_a, row_b in _matched(place_a, place_b):
            if row_a is None:
                new.append(row_b)
            elif row_b is None:
                gone.append(row_a)
            else:
                pairs.append(Pair(row_a, row_b, number))
    whole = (_seconds(a) + _seconds(b)) / 2
    order = {id(row): i for rows in (a, b) for i, row in enumerate(_in_time(rows))}
    return Comparison(
        tuple(replace(pair, speed=_speed(pair, whole)) for pair in sorted(pairs, key=lambda pair: order[id(pair.b)])),
        tuple(sorted(gone, key=lambda row: order[id(row)])),
        tuple(sorted(new, key=lambda row: order[id(row)])),
    )


def _data(given: Given, name: str) -> Data:
    if isinstance(given, Report):
        return given.to_dict()
    if isinstance(given, dict):
        try:
            return Report.from_dict(given).to_dict()
        except ValueError as error:
            raise ValueError(f"`{name}`: {error}") from None
    if isinstance(given, (str, os.PathLike)):
        return Report.from_json(given).to_dict()
    what = "a report, its `to_dict()`, or the path of its JSON file"
    raise TypeError(f"`{name}` must be {what}; got {type(given).__name__}: {given!r}")


def _key(row: _Row, names: Iterable[str]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in names)


# ---- alignment -------------------------------------------------------------------------------------------------------

_Place = list[_Row]


def _in_time(rows: Sequence[_Row]) -> list[_Row]:
    """Returns the rows in the order of their first calls."""
    return [row for _, row in sorted(enumerate(rows), key=lambda item: item[1].get("order", item[0]))]


def _places(rows: Sequence[_Row]) -> list[_Place]:
    """Returns the rows of each place. The places are in the order of their first calls."""
    places: dict[Any, _Place] = {}
    for row in _in_time(rows):
        places.setdefault(_key(row, _PLACE), []).append(row)
    return list(places.values())


def _aligned(a: list[_Place], b: list[_Place]) -> list[tuple[_Place, _Place, int]]:
    """Pairs the places of a with those of b, by their numbers among the same operations of a module, which it returns
    too. One side is empty if the other report has more places of this kind."""
    of_a, of_b = _by_key(a), _by_key(b)
    found: list[tuple[_Place, _Place, int]] = []
    for key in dict.fromkeys((*of_a, *of_b)):
        pairs = zip_longest(of_a.get(key, []), of_b.get(key, []), fillvalue=())
        found += [(list(one), list(other), number) for number, (one, other) in enumerate(pairs, 1)]
    return found


def _by_key(places: list[_Place]) -> dict[Any, list[_Place]]:
    found: dict[Any, list[_Place]] = {}
    for place in places:
        found.setdefault(_key(place[0], _SEEN_AGAIN_BY), []).append(place)
    return found


def _matched(a: _Place, b: _Place) -> list[tuple[Any, Any]]:
    """Pairs the rows of one place: those that agree in most fields, then those in one precision, then the rest."""
    found: list[tuple[Any, Any]] = []
    left_a, left_b = list(a), list(b)
    for names in (("precision", "reason", "why", "rule"), ("precision", "reason"), ("precision",), ()):
        for row in list(left_a):
            other = next((one for one in left_b if _key(one, names) == _key(row, names)), None)
            if other is not None:
                found.append((row, other))
                _remove(left_a, row)
                _remove(left_b, other)
    return found + [(row, None) for row in left_a] + [(None, row) for row in left_b]


def _remove(rows: list[_Row], row: _Row) -> None:
    del rows[next(i for i, one in enumerate(rows) if one is row)]


# ---- speed -----------------------------------------------------------------------------------------------------------


def _seconds(rows: Iterable[_Row]) -> float:
    return math.fsum(row.get("seconds") or 0.0 for row in rows)


def _per_call(row: _Row) -> float | None:
    return float(row["seconds"]) / int(row["calls"]) if row.get("seconds") is not None and row["calls"] else None


def _weight(pair: Pair) -> float:
    """Returns the difference in time over all calls. The number of calls is the mean of both runs."""
    of_a, of_b = _per_call(pair.a) or 0.0, _per_call(pair.b) or 0.0
    return abs(of_b - of_a) * float(pair.a["calls"] + pair.b["calls"]) / 2


def _speed(pair: Pair, whole: float) -> str | None:
    of_a, of_b = _per_call(pair.a), _per_call(pair.b)
    if of_a is None or of_b is None or _weight(pair) < _SHARE * whole:
        return None
    return "slower" if of_b > _TIMES * of_a else "faster" if of_a > _TIMES * of_b else None


# ---- words -----------------------------------------------------------------------------------------------------------


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def _name(pair: Pair) -> str:
    number = f" (#{pair.occurrence})" if pair.occurrence > 1 else ""
    return f"{pair.b['operation']}{number}{_where(pair.b)}"


def _place(row: _Row) -> str:
    return f"{row['operation']}{_where(row)}"


def _where(row: _Row) -> str:
    words = [f"in {row['module']}"] if row.get("module") else []
    if row.get("file"):
        words.append(f"at {os.path.basename(row['file'])}:{row.get('line')}")
    if row.get("phase") not in (None, "forward"):
        words.append(row["phase"])
    return "".join(f" {word}" for word in words)


def _why(row: _Row) -> tuple[Any, ...]:
    return row.get("why") or row.get("reason"), row.get("rule")


def _compared(row: _Row) -> tuple[Any, ...]:
    """Returns the reason without the line of its list: names above it may have been added or removed."""
    why, rule = _why(row)
    return why, _LINE.sub("", rule) if rule else None


def _outcome(row: _Row) -> str:
    why, rule = _why(row)
    words = ", ".join(str(word) for word in (why, rule) if word)
    return f"{row['precision']} ({words})" if words else str(row["precision"])


def _times(pair: Pair) -> str:
    of_a, of_b = _per_call(pair.a) or 0.0, _per_call(pair.b) or 0.0
    times = f", {of_b / of_a:.2f} times" if of_a else ""
    precisions = dict.fromkeys((pair.a["precision"], pair.b["precision"]))
    return f"{_duration(of_a)} -> {_duration(of_b)}{times} ({' -> '.join(precisions)})"


def _duration(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def _calls(count: int) -> str:
    return f"{count:,} call{'s' if count != 1 else ''}"
