"""Invented reports as data, in the form of ``Report.to_dict()``: of few rows, of an encoder, of many call sites."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from habana_mp import CachedWeights, Report, Row
from habana_mp.reporting.records import ModuleRow

Data = dict[str, Any]

_CONFIGURATION = {"opt_level": "O1", "lower": "bf16", "preset": "hmp-default", "within": None}


def row(operation: str, precision: str = "bf16", **more: Any) -> Data:
    """Returns a row with the given values, which may be wrong ones."""
    plain = Row(operation, precision, 10, 2, 64, "list", "hmp_default_bf16.txt:12").to_dict()
    assert more.keys() <= plain.keys()
    return {**plain, **more}


def report(rows: Sequence[Data], **more: Any) -> Data:
    """Returns a report with these rows, which are in the order of their first calls."""
    plain = Report((), detail="lines", configuration=_CONFIGURATION).to_dict()
    return {**plain, "rows": [{**one, "order": i} for i, one in enumerate(rows)], **more}


def network(layers: int = 2, *, steps: int = 10, softmax: str = "fp32", line: int = 20) -> list[Data]:
    """Returns the rows of a network. Each layer has two linear layers of one module, at two lines, and a softmax."""
    rows = []
    for layer in range(layers):
        module, file = f"Net.layers.{layer}", "/home/somebody/net.py"
        place: Data = {"module": module, "file": file, "function": "forward", "calls": steps}
        rows += [
            row("linear", line=line, seconds=0.001 * steps, **place),
            row("softmax", softmax, line=line + 1, rule="hmp_default_fp32.txt:3", seconds=0.002 * steps, **place),
            row("linear", line=line + 2, seconds=0.003 * steps, **place),
        ]
    rows.append(row("cross_entropy", "fp32", rule="hmp_default_fp32.txt:7", calls=steps, seconds=0.001 * steps))
    return rows


_SCRIPT, _MODELING = "/home/user/project/train.py", "/home/user/project/modeling.py"
_CALLS = 20
#: An operation, its module, precision, reason, line and milliseconds.
Call = tuple[str, str | None, str, str, int, float]
#: The forward of one layer, whose modules are those below it.
_LAYER = [
    ("linear", "attention.self.query", "bf16", "list", 61, 1.9),
    ("linear", "attention.self.key", "bf16", "list", 62, 1.9),
    ("linear", "attention.self.value", "bf16", "list", 63, 1.9),
    ("matmul", "attention.self", "bf16", "list", 68, 2.4),
    ("div", "attention.self", "bf16", "scalar", 69, 0.3),
    ("add", "attention.self", "fp32", "widest", 71, 0.4),
    ("softmax", "attention.self", "fp32", "list", 72, 0.8),
    ("dropout", "attention.self.dropout", "fp32", "first_input", 73, 0.3),
    ("matmul", "attention.self", "bf16", "list", 75, 2.2),
    ("reshape", "attention.self", "unchanged", "view", 77, 0.02),
    ("linear", "attention.output.dense", "bf16", "list", 88, 1.9),
    ("dropout", "attention.output.dropout", "bf16", "first_input", 89, 0.2),
    ("layer_norm", "attention.output.norm", "fp32", "list", 91, 0.6),
    ("linear", "intermediate.dense", "bf16", "list", 104, 5.1),
    ("pow", "intermediate", "fp32", "list", 105, 0.9),
    ("mul", "intermediate", "bf16", "list", 106, 0.5),
    ("tanh", "intermediate", "fp32", "list", 107, 0.7),
    ("mul", "intermediate", "bf16", "list", 108, 0.5),
    ("linear", "output.dense", "bf16", "list", 119, 4.9),
    ("add", "output", "fp32", "widest", 121, 0.3),
    ("layer_norm", "output.norm", "fp32", "list", 122, 0.6),
]


def _rows(calls: Sequence[Call], script: str = _SCRIPT) -> list[Row]:
    """Returns the rows of these calls, the costliest first."""
    noise, rows = random.Random(0), []
    for order, (operation, module, precision, reason, line, milliseconds) in enumerate(calls):
        casts = _CALLS if precision == "bf16" or (precision == "fp32" and reason == "list") else 0
        made = Row(
            *(operation, precision, _CALLS, casts, casts * 786432, reason),
            rule=f"hmp_default_{precision}.txt:{7 + len(operation)}" if reason == "list" else "rule 2",
            module=module,
            file=script if module is None else _MODELING,
            line=line,
            function="main" if module is None else "forward",
            phase="backward" if operation.endswith("_backward") else "forward",
            hits=2 * _CALLS if operation == "linear" else 0,
            seconds=milliseconds * noise.uniform(0.9, 1.1) * _CALLS / 1e3,
            cast_seconds=casts * 0.00008,
            order=order,
        )
        rows.append(made)
    return sorted(rows, key=lambda one: -(one.seconds or 0))


def _report(rows: list[Row], findings: list[Data], script: str = _SCRIPT, detail: Any = "lines") -> Data:
    seconds: Counter[str] = Counter()
    for one in sorted(rows, key=lambda one: one.order):
        path = one.module
        while path:
            seconds[path] += (one.seconds or 0) * 1.02  # slightly more than its operations
            path = path.rpartition(".")[0]
    ordered = sorted(seconds, key=lambda path: path.count("."))
    made = Report(
        tuple(rows),
        weights=CachedWeights(hits=100, refreshes=480, refused=2, products=900, weights=74, bytes=170_000_000),
        detail=detail,
        modules=tuple(ModuleRow(path, "Module", _CALLS, seconds[path]) for path in ordered),
        environment={"habana_mp": "0.1.0", "processor": "AMD EPYC 9654", "device": "cpu", "script": script},
        configuration=_CONFIGURATION,
        seconds=sum(one.seconds or 0 for one in rows) * 1.1,
    )
    return {**made.to_dict(), "findings": findings}


def encoder(layers: int = 12, *, script: str = _SCRIPT) -> Data:
    """Returns a report of an encoder in training: forward and backward, about forty rows a layer."""
    calls: list[Call] = [
        ("embedding", "Encoder.embeddings.word", "fp32", "first_input", 21, 0.8),
        ("embedding", "Encoder.embeddings.position", "fp32", "first_input", 22, 0.2),
        ("add", "Encoder.embeddings", "fp32", "widest", 23, 0.3),
    ]
    inner: list[Call] = [(one[0], f"Encoder.layers.{n}.{one[1]}", *one[2:]) for n in range(layers) for one in _LAYER]
    calls += [*inner, ("linear", "Encoder.head", "bf16", "list", 140, 3.2)]
    calls.append(("cross_entropy", None, "fp32", "list", 57, 1.1))
    calls += [(f"{one[0]}_backward", *one[1:3], "first_input", one[4], 2 * one[5]) for one in reversed(inner)]
    rows = _rows(calls, script)
    findings: list[Data] = []
    for number in range(layers):
        path = f"Encoder.layers.{number}.intermediate"
        places = [i for i, one in enumerate(rows) if (one.module or "").startswith(path) and one.phase == "forward"]
        text = f"In layers.{number} results go from bf16 to float32 and back twice; `pow` and `tanh` ask for it."
        findings.append({"kind": "ping-pong", "rows": places, "text": text, "saves": 0.0064})
    alone = [i for i, one in enumerate(rows) if one.module is None]
    findings.append({"kind": "island", "rows": alone, "text": "cross_entropy alone runs in float32.", "saves": None})
    return _report(rows, findings, script)


def many(rows: int = 10_000) -> Data:
    """Returns a report of this many call sites, ten in each module."""
    calls: list[Call] = []
    for number in range(rows):
        operation, _, precision, reason, line, milliseconds = _LAYER[number % len(_LAYER)]
        path = f"Model.blocks.{number // 200}.units.{number // 10 % 20}"
        calls.append((operation, path, precision, reason, line + number, milliseconds))
    return _report(_rows(calls), [])


def operations_only() -> Data:
    """Returns a report with the least detail, without modules, places and times."""
    nothing = dict.fromkeys(("module", "file", "line", "function", "seconds", "cast_seconds"))
    first = {(one.operation, one.precision, one.phase): one for one in _rows([*_LAYER, *_LAYER])}
    rows = [replace(one, calls=100 + number, **nothing) for number, one in enumerate(first.values())]
    made = Report(tuple(rows), environment={"script": _SCRIPT})
    return {**made.to_dict(), "findings": []}
