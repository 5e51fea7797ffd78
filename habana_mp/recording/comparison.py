"""Compares two records: where the first value differs, and what made it."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

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
    #: The number of calls of its process before it that both records have.
    order: int = 0

    @property
    def place(self) -> str:
        return short_place(self.file, self.line)

    def __str__(self) -> str:
        number = f" (call {self.number})" if self.number > 1 else ""
        module = f" in {self.module}" if self.module else ""
        is_backward = self.phase == "backward" and not self.operation.startswith("gradient of ")
        process = f" of {self.process}" if self.process not in ("", "main") else ""
        where = f"{module}{' in the backward' if is_backward else ''} at {self.place}{process}"
        return _core.printable(f"`{self.operation}`{number}{where}")


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
        return min((*self.given, *self.born), key=lambda one: one.order, default=None)

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
        if one.given is None:
            return f"The first difference is born in {_in_words(one)}"
        return (
            f"The runs had other {'weights' if one.is_weight else 'inputs'}: {one} is given other values as input "
            f"{one.given} ({_share(one.inputs)}), while nothing before it differs"
        )

    def _largest(self) -> str:
        parts = []
        others = [one for one in self.born if one is not self.first]
        if others:
            largest = max(others, key=lambda one: one.result)
            parts.append(f"{counted(len(others), 'more difference')} born, the largest in {_in_words(largest)}")
        if self.inherited:
            parts.append(f"{counted(self.inherited, 'call')} inherit a difference, or make one within the bound")
        return f"Then: {'; '.join(parts) or 'nothing else differs'}"

    def _inputs(self) -> str:
        parts = [f"Inputs: {'others' if self.given else 'the same in both'}"]
        parts += [f"{name}: {a} in a, {b} in b" for name, (a, b) in self.runs.items()]
        if self.of_other_sizes:
            calls = counted(self.of_other_sizes, "call")
            parts.append(f"{calls} had other sizes, and were compared by their mean magnitude alone")
        return "; ".join(parts)

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
        others = self.in_another_precision
        if not others:
            return "Precision: the same in all calls"
        ran = f"{counted(len(others), 'call')} ran in another one, the first {others[0]}"
        return f"Precision: {ran}: {' -> '.join(others[0].precisions)}"


def _in_words(one: Difference) -> str:
    if one.only_in:
        return f"{one}, which {one.only_in} alone calls: what follows it has other values ({_share(one.result)})"
    origin, without = (
        ("before the compiled code", "in compiled code") if one.is_compiled else ("of its inputs", "of the same inputs")
    )
    inputs = f"those {origin} by {_share(one.inputs)}" if one.inputs else without
    a, b = one.precisions
    precision = f"; it ran in {a} in a, in {b} in b" if a != b else ""
    return f"{one}: results differ by {_share(one.result)}, {inputs}{precision}"


def _share(share: float) -> str:
    if math.isinf(share):
        return "values that are not finite"
    return f"{100 * share:,.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


# ---- reading ---------------------------------------------------------------------------------------------------------


def is_record(given: Any) -> bool:
    """True for the path of a record: a folder, or one of its files."""
    if not isinstance(given, str | os.PathLike):
        return False
    os.stat(given)  # raises if it is not there
    return os.path.isdir(given) or os.fspath(given).endswith(".jsonl")


def _processes(path: str | os.PathLike[str]) -> dict[str, list[Row]]:
    """Returns the lines of each process: its header, and its rows."""
    whole = Path(path)
    files = sorted(whole.glob("*.jsonl")) if whole.is_dir() else [whole]
    if not files:
        raise ValueError(f"{os.fspath(path)}: it is no record: the folder has no .jsonl file")
    return {file.stem if whole.is_dir() else "": _read(file) for file in files}


def _read(file: Path) -> list[Row]:
    lines = file.read_text("utf-8").splitlines()
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number < len(lines):  # the last line is cut off if the run was killed while it wrote it
                raise ValueError(f"{file}:{number}: it is no line of a record: {line[:60]!r}") from None
    if not rows or rows[0].get("format") != FORMAT_OF_RECORD:
        raise ValueError(f"{file}: it is no record of hmp.record; its first line must name the format")
    return rows


# ---- matching --------------------------------------------------------------------------------------------------------


#: Module, operation, phase, number, and which of these it is: a gradient of a call may be worked out several times.
_Key = tuple[str, str, str, int, int]


def _keyed(rows: list[Row]) -> dict[_Key, Row]:
    seen: Counter[tuple[Any, ...]] = Counter()
    found: dict[_Key, Row] = {}
    for row in rows:
        key = row["module"], row["operation"], row["phase"], row["number"]
        seen[key] += 1
        found[*key, seen[key]] = row
    return found


def _with_parts(rows: dict[_Key, Row], others: dict[_Key, Row]) -> dict[_Key, Row]:
    """Returns the calls, and in place of compiled code that the other record lacks the operations that make its results
    in eager code."""
    found: dict[_Key, Row] = {}
    for key, row in rows.items():
        made = () if key in others else zip(row.get("made_by", ()), row["results"], strict=False)
        parts: dict[_Key, Row] = {}
        for (module, operation, number), result in made:
            part = {"module": module, "operation": operation, "number": number, "results": [result], "is_part": True}
            if number:
                parts[module, operation, row["phase"], number, 1] = row | part
        found |= parts or {key: row}
    return found


def _in_one_order(a: dict[_Key, Row], b: dict[_Key, Row]) -> Iterator[_Key]:
    """Yields the calls of both in the order of b. Those of a alone come before the call that follows them in a."""
    of_a, passed = iter(a), set[_Key]()
    for key in b:
        while key in a and key not in passed:
            one = next(of_a)
            passed.add(one)
            if one not in b:
                yield one
        yield key
    yield from (one for one in of_a if one not in b)


class _Process:
    """The comparison of one process's rows."""

    def __init__(self, name: str, a: list[Row], b: list[Row]) -> None:
        self.born: list[Difference] = []
        self.given: list[Difference] = []
        self.in_another_precision: list[Difference] = []
        self.missing: list[Difference] = []
        self.matched = self.inherited = self.inside_of_compiled = self.of_other_sizes = 0
        self._name = name
        #: The largest difference so far, which gradients inherit.
        self._largest = 0.0
        #: The coarsest step between neighbouring values among the results that differ.
        self._step = 0.0
        self._gradients = Gradients()
        self._compare(_keyed(a), _keyed(b))

    def _compare(self, a: dict[_Key, Row], b: dict[_Key, Row]) -> None:
        # By the record that alone has a call: whether the other one has compiled code, which may have the call inside.
        is_inside = {name: any("made_by" in row for row in other.values()) for name, other in (("a", b), ("b", a))}
        a, b = _with_parts(a, b), _with_parts(b, a)
        alone: Difference | None = None
        for key in _in_one_order(a, b):
            if key in a and key in b:
                self._pair(a[key], b[key], alone)
                alone = None
                continue
            name, row = ("a", a[key]) if key in a else ("b", b[key])
            if is_inside[name] or "is_part" in row:
                self.inside_of_compiled += 1
            else:
                self.missing.append(self._difference(row, only_in=name))
                alone = alone or self.missing[-1]

    def _pair(self, a: Row, b: Row, alone: Difference | None) -> None:
        """Compares a call of both. ``alone``: what one of them calls between the pair before and this one."""
        is_compiled = "is_part" in a or "is_part" in b
        results = list(zip(a["results"], b["results"], strict=False))
        given = [] if is_compiled else list(zip(a["inputs"], b["inputs"], strict=False))
        inputs = [difference_of_inputs(one, other) for one, other in given]
        of_inputs = max(inputs, default=self._largest)
        if of_inputs:  # the sample may have missed the inputs that differ most
            of_inputs = max(of_inputs, self._step, self._largest if b["phase"].startswith("backward") else 0.0)
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
            order=self.matched,
        )
        outside = next((place for place, one in enumerate(inputs) if one > spacing(given[place][0])), None)
        is_born = of_result > _GROWTH * of_inputs + found.bound
        is_born = is_born or bool(given and not of_inputs and of_means > bound_of_means(a, b))
        if alone is not None and not self._largest and (outside is not None or is_born):
            self.born.append(replace(alone, result=max((of_result, *inputs)), order=self.matched))
        elif outside is not None and not self._largest:
            one, other = given[outside]
            if one["dtype"] != other["dtype"]:  # a conversion, which no record has
                self.born.append(found)
            else:
                is_weight = bool(other.get("weight"))
                self.given.append(replace(found, inputs=inputs[outside], given=outside + 1, is_weight=is_weight))
        elif is_born:
            self.born.append(found)
        else:
            self.inherited += of_result > 0
        self.matched += 1
        if given and found.precisions[0] != found.precisions[1]:  # a gradient, without inputs, has none
            self.in_another_precision.append(found)
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
    names = dict.fromkeys((*of_a, *of_b))
    found = [_Process(name, of_a.get(name, [])[1:], of_b.get(name, [])[1:]) for name in names]
    header, other = (next(iter(of.values()))[0] for of in (of_a, of_b))
    if header["sample"] != other["sample"]:
        raise ValueError(
            f"the records must have as many values of each tensor; got {header['sample']} in `a` and {other['sample']} "
            "in `b`: record both with the same `sample=`"
        )
    shown = {"torch": "torch", "habana_mp": "habana_mp", "python": "Python"}
    runs = {words: (str(header.get(name)), str(other.get(name))) for name, words in shown.items()}
    lists = ("born", "given", "in_another_precision", "missing")
    counts = ("matched", "inherited", "inside_of_compiled", "of_other_sizes")
    whole: dict[str, Any] = {name: tuple(one for part in found for one in getattr(part, name)) for name in lists}
    whole |= {name: sum(getattr(part, name) for part in found) for name in counts}
    return RecordComparison(**whole, runs={words: (a, b) for words, (a, b) in runs.items() if a != b})


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
