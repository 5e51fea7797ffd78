"""Compares two records: where the first value differs, and what made it."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from habana_mp import _core
from habana_mp.policy.precisions import FLOAT32_RESULT
from habana_mp.recording.differences import (
    Gradients,
    Row,
    bound,
    bound_of_means,
    difference,
    difference_of_inputs,
    difference_of_means,
    scale_of,
    spacing,
)
from habana_mp.recording.record import FORMAT as FORMAT_OF_RECORD
from habana_mp.reporting import comparison as of_reports
from habana_mp.reporting.records import counted, short_place

FORMAT, VERSION = "habana-mp comparison of records", 1

#: A call may make the differences of its inputs this many times as large.
_GROWTH = 4.0


@dataclass(frozen=True)
class Difference:
    """A call of two records, or of one if the other has no such call."""

    module: str
    operation: str
    phase: str
    #: The number of the call among those of this operation in this module and phase, from 1.
    number: int
    #: Where b calls it, or a if b does not.
    file: str
    line: int
    #: The process, as its file is named.
    process: str
    #: ``"a"`` or ``"b"`` if the other record has no such call.
    only_in: str = ""
    #: The precision in which it ran.
    precisions: tuple[str, str] = ("", "")
    #: The largest difference of its results and of its inputs, as a share of the mean magnitude.
    result: float = 0.0
    inputs: float = 0.0
    #: The difference that other kernels may make of the same inputs.
    bound: float = 0.0
    #: The position of the input that differs, counted from 1, where the two runs gave it other values.
    given: int | None = None
    #: True if that is a weight.
    is_weight: bool = False
    #: True if one of the runs compiled the code around the call, so that its own inputs are unknown.
    is_compiled: bool = False

    @property
    def place(self) -> str:
        return short_place(self.file, self.line)

    def __str__(self) -> str:
        number = f" (call {self.number})" if self.number > 1 else ""
        module = f" in {self.module}" if self.module else ""
        return _core.printable(f"`{self.operation}`{number}{module} at {self.place}")


@dataclass(frozen=True, repr=False)
class RecordComparison:
    """Two records, a and b. ``print`` tells in a few lines where their values begin to differ."""

    #: The calls that make a difference: larger than that of their inputs explains. In the order of b.
    born: tuple[Difference, ...]
    #: The calls that are given other values from outside, while nothing before them differs.
    given: tuple[Difference, ...]
    #: The calls that ran in another precision.
    in_another_precision: tuple[Difference, ...]
    #: The calls that one record alone has.
    missing: tuple[Difference, ...]
    #: How many calls both have, how many of them differ in their results since their inputs do, and how many calls are
    #: inside of code that the other record has compiled.
    matched: int
    inherited: int
    inside_of_compiled: int
    #: How many calls had other sizes, and are compared by their mean magnitudes.
    of_other_sizes: int
    #: What differs between the two runs, as torch's release: its name, and the text of a and of b.
    runs: dict[str, tuple[str, str]] = field(hash=False)

    @property
    def differs(self) -> bool:
        """True if a value differs by more than the sums of the call may, or a run was given other values."""
        return bool(self.born or self.given)

    @property
    def first(self) -> Difference | None:
        """The first difference: values that were given, or the call that made it."""
        return next(iter((*self.given, *self.born)), None)

    def changed(self, change: str) -> list[Difference]:
        """Returns the calls that ran in another precision, for ``"precision"``."""
        if change != "precision":
            raise ValueError(f'`change` of two records must be "precision"; got {change!r}')
        return list(self.in_another_precision)

    def to_dict(self) -> dict[str, Any]:
        """Returns the comparison as plain data, for JSON. Infinite numbers become None."""
        data = {"format": FORMAT, "version": VERSION, "differs": self.differs, **asdict(self)}
        return json.loads(json.dumps(data), parse_constant=lambda _: None)  # type: ignore[no-any-return]  # a dict

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Writes the comparison as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n", "utf-8")

    def __str__(self) -> str:
        return "\n".join((self._first(), self._largest(), self._inputs(), self._calls(), self._precisions()))

    __repr__ = __str__

    def _first(self) -> str:
        one = self.first
        if one is None:
            return "No difference is born: each result differs by no more than its inputs and its sums explain"
        if one.given is not None:
            what = "weights" if one.is_weight else "inputs"
            return (
                f"The runs had other {what}: {one} is given other values as input {one.given} "
                f"({_share(one.inputs)}), while nothing before it differs"
            )
        return f"The first difference is born in {_in_words(one)}"

    def _largest(self) -> str:
        parts = []
        others = sorted((one for one in self.born if one is not self.first), key=lambda one: -one.result)
        if others:
            parts.append(f"{counted(len(others), 'more difference')} born, the largest in {_in_words(others[0])}")
        if self.inherited:
            parts.append(f"{counted(self.inherited, 'call')} inherit a difference, or make one within the bound")
        return f"Then: {'; '.join(parts) or 'nothing else differs'}"

    def _inputs(self) -> str:
        runs = "".join(f"; {name}: {a} in a, {b} in b" for name, (a, b) in self.runs.items())
        sizes = (
            f"; {counted(self.of_other_sizes, 'call')} had other sizes, and were compared by their mean magnitude alone"
            if self.of_other_sizes
            else ""
        )
        return f"Inputs: {'others' if self.given else 'the same in both'}{runs}{sizes}"

    def _calls(self) -> str:
        parts = [f"Calls: {self.matched:,} are in both"]
        for name in "ab":
            alone = [one for one in self.missing if one.only_in == name]
            if alone:
                parts.append(f"{len(alone):,} in {name} alone, the first {alone[0]}")
        if self.inside_of_compiled:
            parts.append(f"{self.inside_of_compiled:,} inside of code that the other run compiled")
        return "; ".join(parts)

    def _precisions(self) -> str:
        if not self.in_another_precision:
            return "Precision: the same in all calls"
        one = self.in_another_precision[0]
        return (
            f"Precision: {counted(len(self.in_another_precision), 'call')} ran in another one, the first {one}: "
            f"{' -> '.join(one.precisions)}"
        )


def _in_words(one: Difference) -> str:
    if one.only_in:
        return f"{one}, which {one.only_in} alone calls: the call after it is given other values ({_share(one.result)})"
    others = f", those of its inputs by {_share(one.inputs)}" if one.inputs else ", of the same inputs"
    if one.is_compiled:
        others = f", those before the compiled code by {_share(one.inputs)}" if one.inputs else ", in compiled code"
    precision = ""
    if one.precisions[0] != one.precisions[1]:
        precision = f"; it ran in {one.precisions[0]} in a, in {one.precisions[1]} in b"
    return f"{one}: results differ by {_share(one.result)}{others}{precision}"


def _share(share: float) -> str:
    if math.isinf(share):
        return "values that are not finite"
    return f"{100 * share:.2g} %"


# ---- reading ---------------------------------------------------------------------------------------------------------


def is_record(given: Any) -> bool:
    """True for the path of a record: a folder, or one of its files."""
    if not isinstance(given, str | os.PathLike):
        return False
    return os.path.isdir(given) or os.fspath(given).endswith(".jsonl")


def _processes(path: str | os.PathLike[str]) -> dict[str, tuple[Row, list[Row]]]:
    """Returns the header and the rows of each process."""
    whole = Path(path)
    files = sorted(whole.glob("*.jsonl")) if whole.is_dir() else [whole]
    if not files:
        raise ValueError(f"{os.fspath(path)}: it is no record: the folder has no .jsonl file")
    return {file.stem if whole.is_dir() else "": _read(file) for file in files}


def _read(file: Path) -> tuple[Row, list[Row]]:
    lines = file.read_text("utf-8").splitlines()
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number == len(lines):  # the run was killed while it wrote this line
                break
            raise ValueError(f"{file}:{number}: it is no line of a record: {line[:60]!r}") from None
    if not rows or rows[0].get("format") != FORMAT_OF_RECORD:
        raise ValueError(f"{file}: it is no record of hmp.record; its first line must name the format")
    return rows[0], rows[1:]


# ---- matching --------------------------------------------------------------------------------------------------------


class _Key(NamedTuple):
    module: str
    operation: str
    phase: str
    number: int
    #: A gradient of the same call may be worked out several times.
    occurrence: int


def _keyed(rows: Iterable[Row]) -> Iterator[tuple[_Key, Row]]:
    seen: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        key = row["module"], row["operation"], row["phase"], row["number"]
        seen[key] += 1
        yield _Key(*key, seen[key]), row


def _parts(row: Row) -> Iterator[tuple[_Key, Row]]:
    """Yields the results of a call of compiled code, each as the call of eager code that would make it."""
    for (module, operation, number), result in zip(row.get("made_by", ()), row["results"], strict=False):
        if number:
            part = {**row, "module": module, "operation": operation, "number": number, "results": [result]}
            yield _Key(module, operation, row["phase"], number, 1), part


class _Process:
    """The comparison of one process's rows."""

    def __init__(self, name: str, a: list[Row], b: list[Row]) -> None:
        self.born: list[Difference] = []
        self.given: list[Difference] = []
        self.in_another_precision: list[Difference] = []
        self.missing: list[Difference] = []
        self.matched = self.inherited = self.inside = self.of_other_sizes = 0
        self._name = name
        #: The largest difference so far, which gradients inherit.
        self._largest = 0.0
        #: The coarsest step between neighbouring values among the results that differ.
        self._step = 0.0
        self._gradients = Gradients()
        self._compare(dict(_keyed(a)), dict(_keyed(b)))

    def _compare(self, a: dict[_Key, Row], b: dict[_Key, Row]) -> None:
        parts_a, parts_b = ({key: part for row in of.values() for key, part in _parts(row)} for of in (a, b))
        keys, places, looked_at = list(a), {key: place for place, key in enumerate(a)}, 0
        alone: Difference | None = None
        for key, row in b.items():
            if key in a:
                own = [one for one in keys[looked_at : places[key]] if one not in b]
                looked_at = max(looked_at, places[key] + 1)
                alone = self._all_alone([a[one] for one in own], "a", is_inside=bool(parts_b)) or alone
                self._pair(a[key], row, alone)
                alone = None
                continue
            mine = dict(_parts(row)) or {key: row}
            found = [(a.get(one) or parts_a.get(one), part) for one, part in mine.items()]
            for other, part in found:
                if other is not None:
                    self._pair(other, part, None, is_compiled=True)
            if not any(other for other, _ in found):
                alone = self._all_alone([row], "b", is_inside=bool(parts_a)) or alone
        rest = [a[one] for one in keys[looked_at:] if one not in b and one not in parts_b]
        self._all_alone(rest, "a", is_inside=bool(parts_b))

    def _all_alone(self, rows: list[Row], name: str, *, is_inside: bool) -> Difference | None:
        """Notes the calls that one record alone has, and returns the first one. ``is_inside``: those of the other one
        are inside of compiled code."""
        if is_inside:
            self.inside += len(rows)
            return None
        found = [self._difference(row, only_in=name) for row in rows]
        self.missing += found
        return found[0] if found else None

    def _pair(self, a: Row, b: Row, alone: Difference | None, *, is_compiled: bool = False) -> None:
        """Compares a call of both. ``alone``: what one of them calls between the pair before and this one."""
        results = list(zip(a["results"], b["results"], strict=False))
        given = [] if is_compiled else list(zip(a["inputs"], b["inputs"], strict=False))
        inputs = [difference_of_inputs(one, other) for one, other in given]
        of_inputs = max(inputs, default=self._largest)
        if of_inputs:  # the sample may have missed the inputs that differ most
            of_inputs = max(of_inputs, self._step, self._largest if b["phase"] == "backward" else 0.0)
        scale, terms = max(scale_of(a), scale_of(b)), 1.0
        if any(one.get("weight") for one, _ in results):
            scale, terms = self._gradients.scale_and_terms(b)
        of_result = max((difference(one, other, scale) for one, other in results), default=0.0)
        of_means = max((difference_of_means(one, other) for one, other in results), default=0.0)
        found = self._difference(
            b,
            precisions=(_precision(a), _precision(b)),
            result=of_result,
            inputs=of_inputs,
            bound=bound(a, b, terms),
            is_compiled=is_compiled,
        )
        changes = bool(given) and found.precisions[0] != found.precisions[1]  # a gradient, without inputs, has none
        outside = next((place for place, one in enumerate(inputs) if one > spacing(given[place][0])), None)
        if outside is not None and not self._largest:
            one, other = given[outside]
            if alone is not None:
                self.born.append(replace(alone, result=inputs[outside]))
            elif one["dtype"] != other["dtype"]:  # a conversion, which no record has
                self.born.append(found)
            else:
                is_weight = bool(other.get("weight"))
                self.given.append(replace(found, inputs=inputs[outside], given=outside + 1, is_weight=is_weight))
        elif of_result > _GROWTH * of_inputs + found.bound or (
            given and not of_inputs and of_means > bound_of_means(a, b)
        ):
            self.born.append(found)
        else:
            self.inherited += of_result > 0
        self.matched += 1
        self.in_another_precision += [found] if changes else []
        self.of_other_sizes += any(one["sizes"] != other["sizes"] for one, other in results)
        self._largest = max(self._largest, of_result, *inputs)
        if of_result:
            self._step = max(self._step, *(spacing(one) for pair in results for one in pair))
        if not given:
            self._gradients.note(b)

    def _difference(self, row: Row, **more: Any) -> Difference:
        same = {name: row[name] for name in ("module", "operation", "phase", "number", "file", "line")}
        return Difference(**same, process=self._name, **more)


def _precision(row: Row) -> str:
    """Returns the precision of a call: that of its results where nothing decided."""
    if row["precision"] != "unchanged":
        return str(row["precision"]) + (FLOAT32_RESULT if row["reason"] == "float32_result" else "")
    dtype = row["results"][0]["dtype"] if row["results"] else ""
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(dtype, dtype)


def _of_records(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> RecordComparison:
    of_a, of_b = _processes(a), _processes(b)
    if of_a.keys() != of_b.keys() and len(of_a) == len(of_b) == 1:  # a record of one process under another name
        of_b = dict(zip(of_a, of_b.values(), strict=True))
    nothing: tuple[Row, list[Row]] = ({}, [])
    found = [
        _Process(name, of_a.get(name, nothing)[1], of_b.get(name, nothing)[1]) for name in dict.fromkeys((*of_a, *of_b))
    ]
    headers = next(iter(of_a.values()))[0], next(iter(of_b.values()))[0]
    names = {"torch": "torch", "habana_mp": "habana_mp", "python": "Python", "sample": "values of a tensor"}
    return RecordComparison(
        born=tuple(one for part in found for one in part.born),
        given=tuple(one for part in found for one in part.given),
        in_another_precision=tuple(one for part in found for one in part.in_another_precision),
        missing=tuple(one for part in found for one in part.missing),
        matched=sum(part.matched for part in found),
        inherited=sum(part.inherited for part in found),
        inside_of_compiled=sum(part.inside for part in found),
        of_other_sizes=sum(part.of_other_sizes for part in found),
        runs={
            words: (str(headers[0].get(name)), str(headers[1].get(name)))
            for name, words in names.items()
            if headers[0].get(name) != headers[1].get(name)
        },
    )


def compare(a: of_reports.Given, b: of_reports.Given) -> of_reports.Comparison | RecordComparison:
    """Compares two records by their values, or two reports by precision and time.

    ::

        print(hmp.compare("before", "after"))              # folders of hmp.record
        print(hmp.compare("before.json", "after.json"))    # reports

    Args:
        a: The folder of :func:`record`; or a report: a result of ``hmp.report()``, its ``to_dict()``, or the path of
            its JSON file.
        b: The same of the other run.

    Raises:
        TypeError: an argument of another type.
        ValueError: a file that holds neither, a record and a report, or two reports of different detail.
        OSError: a file that cannot be read.
    """
    records = is_record(a), is_record(b)
    if records[0] != records[1]:
        raise ValueError(f"`a` and `b` must both be records or both be reports; got {a!r} and {b!r}")
    if records[0]:
        return _of_records(a, b)  # type: ignore[arg-type]  # both are paths
    return of_reports.compare(a, b)
