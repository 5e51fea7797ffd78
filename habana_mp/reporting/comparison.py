"""What differs between two reports."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from habana_mp import _core
from habana_mp.reporting.report import Report

_Row = dict[str, Any]

#: A report as :meth:`Report.to_dict` gives it.
Data = dict[str, Any]

#: What a report of :func:`compare` may be.
Given = Report | Data | str | os.PathLike[str]

#: A call is slower where it takes this many times as long, and all of its calls this share of the whole time.
_TIMES, _SHARE = 1.2, 0.01

#: Where a call is made: rows that agree in these are one place, in several precisions or for several reasons.
_PLACE = ("module", "file", "line", "function", "operation", "phase")

#: What a place is recognised by in another report. Not its line: scripts are edited.
_SEEN_AGAIN_BY = ("module", "operation", "phase")

#: At the end of a rule: where in a list file it stands.
_LINE = re.compile(r":\d+$")

FORMAT, VERSION = "habana-mp comparison", 1


@dataclass(frozen=True)
class Pair:
    """A row of each report that stand for the same calls."""

    a: _Row
    b: _Row
    #: Which of the places with this operation in this module, from 1.
    occurrence: int
    #: ``"slower"``, ``"faster"``, or None.
    speed: str | None = None

    @property
    def change(self) -> str | None:
        """``"precision"``, ``"reason"``, or None where neither changed."""
        if self.a["precision"] != self.b["precision"]:
            return "precision"
        return "reason" if _compared(self.a) != _compared(self.b) else None

    def to_dict(self) -> dict[str, Any]:
        return {"a": self.a, "b": self.b, "occurrence": self.occurrence, "change": self.change, "speed": self.speed}

    def mirrored(self) -> Pair:
        speed = {"slower": "faster", "faster": "slower", None: None}[self.speed]
        return Pair(self.b, self.a, self.occurrence, speed)


@dataclass(frozen=True)
class Comparison:
    """Two reports, a and b. Each row of both is in one pair, or ``gone`` (of a), or ``new`` (of b). Printing it tells
    what differs."""

    pairs: tuple[Pair, ...]
    gone: tuple[_Row, ...]
    new: tuple[_Row, ...]

    @property
    def differs(self) -> bool:
        """Is anything new, gone, or in another precision or for another reason? (No two runs take the same time, and a
        longer run has more calls.)"""
        return bool(self.gone or self.new or any(pair.change for pair in self.pairs))

    def changed(self, change: str | None) -> list[Pair]:
        """The pairs with this change, in the order of b."""
        return [pair for pair in self.pairs if pair.change == change]

    def of_speed(self, speed: str) -> list[Pair]:
        """The pairs that are ``"slower"`` or ``"faster"``, per call; what matters most first."""
        return sorted((pair for pair in self.pairs if pair.speed == speed), key=lambda pair: -_weight(pair))

    def calls(self) -> tuple[int, int]:
        """All calls of a, and of b."""
        pairs = self.pairs
        of_a = sum(pair.a["calls"] for pair in pairs) + sum(row["calls"] for row in self.gone)
        of_b = sum(pair.b["calls"] for pair in pairs) + sum(row["calls"] for row in self.new)
        return of_a, of_b

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
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

    def mirrored(self) -> Comparison:
        """Of b and a."""
        return Comparison(tuple(pair.mirrored() for pair in self.pairs), self.new, self.gone)

    def __str__(self) -> str:
        lines = [self._counts()]
        of_a, of_b = self.calls()
        if any(pair.a["calls"] != pair.b["calls"] for pair in self.pairs):
            lines.append(f"calls: {of_a:,} in a, {of_b:,} in b; times are compared per call")
        for title, pairs in (
            ("in another precision", self.changed("precision")),
            ("for another reason", self.changed("reason")),
        ):
            lines += _section(title, [f"{_name(pair)}: {_told(pair.a)} -> {_told(pair.b)}" for pair in pairs])
        for speed in ("slower", "faster"):
            lines += _section(f"{speed}, per call", [f"{_name(pair)}: {_times(pair)}" for pair in self.of_speed(speed)])
        for title, rows in (("new in b", self.new), ("gone from a", self.gone)):
            lines += _section(title, [f"{_place(row)}: {_told(row)}, {_calls(row['calls'])}" for row in rows])
        return "\n".join(map(_core.printable, lines))

    def _counts(self) -> str:
        counts = {
            "the same": len(self.changed(None)),
            "in another precision": len(self.changed("precision")),
            "for another reason": len(self.changed("reason")),
            "new": len(self.new),
            "gone": len(self.gone),
        }
        return "rows: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "the same")


def compare(a: Given, b: Given) -> Comparison:
    """What differs between two reports: of ``hmp.report()``, their ``to_dict()``, or the paths of their JSON files.

    Raises:
        TypeError: something that is none of these.
        ValueError: a dict or a file that holds no report.
        OSError: a file that cannot be read.
    """
    return of_data(_data(a, "a"), _data(b, "b"))


def of_data(a: Data, b: Data) -> Comparison:
    """The same of reports as data."""
    # Of alignments that are as good the first is taken: which that is must not depend on the order given.
    is_turned = _text(b["rows"]) < _text(a["rows"])
    found = _found(b, a).mirrored() if is_turned else _found(a, b)
    order = {id(row): i for rows in (a["rows"], b["rows"]) for i, row in enumerate(_in_time(rows))}
    return Comparison(
        tuple(sorted(found.pairs, key=lambda pair: order[id(pair.b)])),
        tuple(sorted(found.gone, key=lambda row: order[id(row)])),
        tuple(sorted(found.new, key=lambda row: order[id(row)])),
    )


def _found(a: Data, b: Data) -> Comparison:
    pairs: list[Pair] = []
    gone: list[_Row] = []
    new: list[_Row] = []
    occurrences: dict[Any, int] = {}
    for place_a, place_b in _aligned(_places(a["rows"]), _places(b["rows"])):
        key = _key((place_a or place_b)[0], _SEEN_AGAIN_BY)
        occurrences[key] = occurrences.get(key, 0) + 1
        for row_a, row_b in _matched(place_a, place_b):
            if row_a is None:
                new.append(row_b)
            elif row_b is None:
                gone.append(row_a)
            else:
                pairs.append(Pair(row_a, row_b, occurrences[key]))
    whole = (_seconds(a["rows"]) + _seconds(b["rows"])) / 2
    return Comparison(tuple(replace(pair, speed=_speed(pair, whole)) for pair in pairs), tuple(gone), tuple(new))


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


def _text(rows: Sequence[_Row]) -> str:
    return json.dumps(rows, sort_keys=True, default=str)


def _key(row: _Row, names: Iterable[str]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in names)


# ---- alignment -------------------------------------------------------------------------------------------------------

_Place = list[_Row]

#: A place, and what tells it from others of its kind: precisions, function, and what is called before and after it.
_Seen = tuple[_Place, tuple[Any, ...]]

#: What a pair is worth, whatever its places have in common: more than all that they may.
_PAIR = 1000


def _in_time(rows: Sequence[_Row]) -> list[_Row]:
    """In the order of their first calls."""
    return [row for _, row in sorted(enumerate(rows), key=lambda item: item[1].get("order", item[0]))]


def _places(rows: Sequence[_Row]) -> list[_Place]:
    """The rows of each place, in the order in which these were first called."""
    places: dict[Any, _Place] = {}
    for row in _in_time(rows):
        places.setdefault(_key(row, _PLACE), []).append(row)
    return list(places.values())


def _aligned(a: list[_Place], b: list[_Place]) -> list[tuple[_Place, _Place]]:
    """Places of a beside those of b; one of them is empty where the other report has more of its like."""
    of_a, of_b = _by_key(a), _by_key(b)
    found: list[tuple[_Place, _Place]] = []
    for key in dict.fromkeys((*of_a, *of_b)):
        found += _in_order(of_a.get(key, []), of_b.get(key, []))
    return found


def _by_key(places: list[_Place]) -> dict[Any, list[_Seen]]:
    """Places that may be the same in another report, in their order, each with what is peculiar to it."""
    keys = [_key(place[0], _SEEN_AGAIN_BY) for place in places]
    found: dict[Any, list[_Seen]] = {}
    for before, key, place, after in zip([None, *keys], keys, places, [*keys[1:], None], strict=False):
        traits = (frozenset(row["precision"] for row in place), place[0].get("function"), before, after)
        found.setdefault(key, []).append((place, traits))
    return found


def _in_order(a: list[_Seen], b: list[_Seen]) -> list[tuple[_Place, _Place]]:
    """As many pairs as there can be that keep the order of both; among these, such that have most in common."""

    def worth(i: int, j: int) -> int:
        precision, *rest = (bool(one == other) for one, other in zip(a[i][1], b[j][1], strict=True))
        return _PAIR + 2 * precision + sum(rest)

    # The best of what follows the first i of a and the first j of b.
    best = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            best[i][j] = max(best[i + 1][j + 1] + worth(i, j), best[i + 1][j], best[i][j + 1])
    found: list[tuple[_Place, _Place]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        if i < len(a) and j < len(b) and best[i][j] == best[i + 1][j + 1] + worth(i, j):
            found.append((a[i][0], b[j][0]))
            i, j = i + 1, j + 1
        elif j == len(b) or (i < len(a) and best[i][j] == best[i + 1][j]):
            found.append((a[i][0], []))
            i += 1
        else:
            found.append(([], b[j][0]))
            j += 1
    return found


def _matched(a: _Place, b: _Place) -> list[tuple[Any, Any]]:
    """The rows of one place: those that agree in most, then those in one precision, then the rest in their order."""
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
    """How much time the difference makes over all calls, those of both runs in the mean."""
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
    """Not the line of a list: names above it may have come or gone."""
    why, rule = _why(row)
    return why, _LINE.sub("", rule) if rule else None


def _told(row: _Row) -> str:
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
