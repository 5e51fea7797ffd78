"""Invented reports in the form of ``Report.to_dict()``: for an encoder, for many call sites, for operations alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from habana_mp.reporting.records import REASONS

Data = dict[str, Any]

_SCRIPT = "/home/user/project/train.py"
_MODELING = "/home/user/project/modeling.py"
#: The forward of one layer: name, operation, module below the layer, precision, reason, line, milliseconds, inputs.
_LAYER = [
    ("query", "linear", "attention.self.query", "bf16", "list", 61, 1.9, ["in"]),
    ("key", "linear", "attention.self.key", "bf16", "list", 62, 1.9, ["in"]),
    ("value", "linear", "attention.self.value", "bf16", "list", 63, 1.9, ["in"]),
    ("scores", "matmul", "attention.self", "bf16", "list", 68, 2.4, ["query", "key"]),
    ("scaled", "div", "attention.self", "bf16", "scalar", 69, 0.3, ["scores"]),
    ("masked", "add", "attention.self", "fp32", "widest", 71, 0.4, ["scaled"]),
    ("weights", "softmax", "attention.self", "fp32", "list", 72, 0.8, ["masked"]),
    ("dropped", "dropout", "attention.self.dropout", "fp32", "first_input", 73, 0.3, ["weights"]),
    ("context", "matmul", "attention.self", "bf16", "list", 75, 2.2, ["dropped", "value"]),
    ("merged", "reshape", "attention.self", "unchanged", "view", 77, 0.02, ["context"]),
    ("projected", "linear", "attention.output.dense", "bf16", "list", 88, 1.9, ["merged"]),
    ("kept", "dropout", "attention.output.dropout", "bf16", "first_input", 89, 0.2, ["projected"]),
    ("summed", "add", "attention.output", "fp32", "widest", 90, 0.3, ["kept", "in"]),
    ("normed", "layer_norm", "attention.output.norm", "fp32", "list", 91, 0.6, ["summed"]),
    ("wide", "linear", "intermediate.dense", "bf16", "list", 104, 5.1, ["normed"]),
    ("cubed", "pow", "intermediate", "fp32", "list", 105, 0.9, ["wide"]),
    ("mixed", "mul", "intermediate", "bf16", "list", 106, 0.5, ["cubed", "wide"]),
    ("bent", "tanh", "intermediate", "fp32", "list", 107, 0.7, ["mixed"]),
    ("opened", "mul", "intermediate", "bf16", "list", 108, 0.5, ["bent", "wide"]),
    ("narrow", "linear", "output.dense", "bf16", "list", 119, 4.9, ["opened"]),
    ("spared", "dropout", "output.dropout", "bf16", "first_input", 120, 0.2, ["narrow"]),
    ("added", "add", "output", "fp32", "widest", 121, 0.3, ["spared", "normed"]),
    ("out", "layer_norm", "output.norm", "fp32", "list", 122, 0.6, ["added"]),
    ("mean", "mean", "", "fp32", "list", 131, 0.1, ["out"]),
]  # fmt: skip
#: The operations of a layer that go back and forth between bfloat16 and float32.
_PING_PONG = ["wide", "cubed", "mixed", "bent", "opened"]
_CLASSES = {
    "Encoder": "Encoder",
    "embeddings": "Embeddings",
    "layers": "ModuleList",
    "attention": "Attention",
    "self": "SelfAttention",
    "output": "Output",
    "intermediate": "Intermediate",
    "query": "Linear",
    "key": "Linear",
    "value": "Linear",
    "dense": "Linear",
    "word": "Embedding",
    "position": "Embedding",
    "head": "Linear",
    "dropout": "Dropout",
    "norm": "LayerNorm",
}


class _Maker:
    """Collects rows in the order of their calls, and edges between them."""

    def __init__(self, calls: int, *, script: str = _SCRIPT) -> None:
        self.rows: list[Data] = []
        self.edges: list[Data] = []
        self._calls = calls
        self._script = script
        self._random = random.Random(0)

    def row(self, operation: str, module: str | None, precision: str, reason: str = "list", **more: Any) -> int:
        """Adds a row, and returns its index."""
        milliseconds = more.pop("milliseconds", 0.2) * self._random.uniform(0.9, 1.1)
        casts = {"bf16": self._calls, "fp32": self._calls if reason == "list" else 0}.get(precision, 0)
        rule = f"hmp_default_{precision}.txt:{7 + len(operation)}" if reason == "list" else "rule 2"
        self.rows.append(
            {
                "module": module,
                "file": self._script if module is None else _MODELING,
                "line": more.pop("line", 40),
                "function": "main" if module is None else "forward",
                "operation": operation,
                "precision": precision,
                "reason": reason,
                "why": REASONS[reason].description,
                "rule": rule,
                "phase": more.pop("phase", "forward"),
                "calls": self._calls,
                "casts": casts,
                "casts_up": casts if precision == "fp32" else 0,
                "casts_down": casts if precision == "bf16" else 0,
                "bytes": casts * 786432,
                "hits": 2 * self._calls if operation == "linear" else 0,
                "seconds": milliseconds * self._calls / 1e3,
                "cast_seconds": casts * 0.00008,
                "order": len(self.rows),
            }
        )
        return len(self.rows) - 1

    def edge(self, start: int, end: int) -> None:
        precisions = {self.rows[start]["precision"], self.rows[end]["precision"]}
        casts = self._calls if precisions == {"bf16", "fp32"} else 0
        self.edges.append({"from": start, "to": end, "calls": self._calls, "casts": casts})

    def report(self, findings: list[Data], *, words: list[str] | None = None) -> Data:
        """Returns a report of all rows, the costliest first."""
        ranks = sorted(range(len(self.rows)), key=lambda i: (-self.rows[i]["seconds"], i))
        new = {old: rank for rank, old in enumerate(ranks)}
        rows = [self.rows[old] for old in ranks]
        edges = [{**edge, "from": new[edge["from"]], "to": new[edge["to"]]} for edge in self.edges]
        findings = [{**finding, "rows": [new[old] for old in finding["rows"]]} for finding in findings]
        return _report("lines", rows, modules=_modules(self.rows), edges=edges, findings=findings, words=words or [])


def encoder(layers: int = 12, *, script: str = _SCRIPT, calls: int = 20) -> Data:
    """Returns a report of an encoder in training: forward and backward, about fifty rows a layer."""
    maker = _Maker(calls, script=script)
    word = maker.row("embedding", "Encoder.embeddings.word", "fp32", "first_input", line=21, milliseconds=0.8)
    position = maker.row("embedding", "Encoder.embeddings.position", "fp32", "first_input", line=22, milliseconds=0.2)
    summed = maker.row("add", "Encoder.embeddings", "fp32", "widest", line=23, milliseconds=0.3)
    maker.edge(word, summed)
    maker.edge(position, summed)
    findings, made = [], []
    before = summed
    for number in range(layers):
        names = _forward(maker, f"Encoder.layers.{number}", before)
        before = names["out"]
        made.append(names)
        findings.append(_ping_pong(number, [names[name] for name in _PING_PONG], calls))
    logits = maker.row("linear", "Encoder.head", "bf16", line=140, milliseconds=3.2)
    loss = maker.row("cross_entropy", None, "fp32", line=57, milliseconds=1.1)
    maker.edge(before, logits)
    maker.edge(logits, loss)
    gradient = loss
    for names in reversed(made):
        gradient = _backward(maker, names, gradient)
    findings.append(
        {"kind": "island", "rows": [loss], "text": "cross_entropy alone runs in float32 there.", "saves": None}
    )
    return maker.report(
        findings,
        words=[
            f"In {layers} places results go to float32 and back again, for the pow and the tanh of the activation.",
            "Of the weights that could be cached in bf16, all are.",
        ],
    )


def _forward(maker: _Maker, path: str, before: int) -> dict[str, int]:
    names = {"in": before}
    for name, operation, module, precision, reason, line, milliseconds, inputs in _LAYER:
        where = f"{path}.{module}".rstrip(".")
        names[name] = maker.row(operation, where, precision, reason, line=line, milliseconds=milliseconds)
        for one in inputs:
            maker.edge(names[one], names[name])
    return names


def _backward(maker: _Maker, names: dict[str, int], gradient: int) -> int:
    for name, operation, *_, milliseconds, _inputs in reversed(_LAYER):
        forward = maker.rows[names[name]]
        precision, line = forward["precision"], forward["line"]
        row = maker.row(
            f"{operation}_backward",
            forward["module"],
            precision,
            "first_input",
            line=line,
            milliseconds=2 * milliseconds,
            phase="backward",
        )
        maker.edge(gradient, row)
        gradient = row
    return gradient


def _ping_pong(layer: int, rows: list[int], calls: int) -> Data:
    text = (
        f"In layers.{layer}.intermediate results go from bf16 to float32 and back twice; `pow` and `tanh` ask for it."
    )
    return {"kind": "ping-pong", "rows": rows, "text": text, "saves": 0.00032 * calls}


def many(rows: int = 10_000) -> Data:
    """Returns a report of this many call sites, ten in each module."""
    maker = _Maker(3)
    before: int | None = None
    for number in range(rows):
        path = f"Model.blocks.{number // 200}.units.{number // 10 % 20}"
        _, operation, _, precision, reason, line, milliseconds, _inputs = _LAYER[number % len(_LAYER)]
        row = maker.row(operation, path, precision, reason, line=line + number, milliseconds=milliseconds)
        if before is not None:
            maker.edge(before, row)
        before = row
    pairs = [
        {"kind": "ping-pong", "rows": [at, at + 1], "text": "bf16, float32, bf16.", "saves": None} for at in (4, 8)
    ]
    return maker.report(pairs)


def operations_only() -> Data:
    """Returns a report with the least detail, without modules, places and times."""
    detailed = encoder(2)["rows"]
    nothing = ("module", "file", "line", "function", "seconds", "cast_seconds")
    merged: dict[tuple[str, str, str, str], Data] = {}
    for row in detailed:
        key = (row["operation"], row["precision"], row["reason"], row["phase"])
        if key not in merged:
            merged[key] = {**row, **dict.fromkeys(nothing)}
            continue
        for field in ("calls", "casts", "casts_up", "casts_down", "bytes", "hits"):
            merged[key][field] += row[field]
    return _report("operations", list(merged.values()), words=[])


def _modules(rows: Iterable[Data]) -> list[Data]:
    """Returns the modules of the rows and their parents, with times slightly above those of their operations."""
    seconds: Counter[str] = Counter()
    for row in rows:
        path = row["module"]
        while path:
            seconds[path] += row["seconds"] * 1.02
            path = path.rpartition(".")[0]
    # A Counter keeps the insertion order, in which the inner modules come first.
    ordered = sorted(seconds, key=lambda path: path.count("."))
    return [{"path": path, "class": _class_of(path), "calls": 20, "seconds": seconds[path]} for path in ordered]


def _class_of(path: str) -> str:
    name = path.rpartition(".")[2]
    return _CLASSES.get(name, "EncoderLayer" if name.isdigit() else name.capitalize())


def _report(
    detail: str,
    rows: list[Data],
    *,
    words: list[str],
    modules: list[Data] | None = None,
    edges: list[Data] | None = None,
    findings: list[Data] | None = None,
) -> Data:
    timed = any(row["seconds"] is not None for row in rows)
    totals = _totals(rows, timed=timed)
    return {
        "format": "habana-mp report",
        "version": 1,
        "detail": detail,
        "environment": {
            "habana_mp": "0.1.0",
            "torch": "2.13.0+cpu",
            "python": "3.11.7",
            "processor": "AMD EPYC 9654",
            "device": "cpu",
            "script": _script_of(rows),
        },
        "configuration": {
            "opt_level": "O1",
            "lower": "bf16",
            "preset": "hmp-default",
            "bf16_list": None,
            "fp32_list": None,
            "within": "modules",
        },
        "seconds": sum(row["seconds"] for row in rows) * 1.1 if timed else None,
        "ranks": 1,
        "words": [_first_words(totals, timed=timed), *words] if rows else words,
        "totals": totals,
        "rows": rows,
        "modules": modules or [],
        "edges": edges or [],
        "findings": findings or [],
        "weights": {
            "hits": sum(row["hits"] for row in rows),
            "refreshes": 480,
            "refused": 2,
            "products": 900,
            "weights": 74,
            "bytes": 170_000_000,
            "reasons": {"others hold its memory": 2},
        },
    }


def _first_words(totals: Data, *, timed: bool) -> str:
    field, words = ("seconds", "the operations' time was spent") if timed else ("calls", "the calls ran")
    share = totals["by_precision"]["bf16"][field] / totals[field]
    return f"{100 * share:.0f} % of {words} in bf16."


def _script_of(rows: Iterable[Data]) -> str:
    """Returns the file of the code that ran outside of modules."""
    return next((row["file"] for row in rows if row["module"] is None and row["file"] is not None), _SCRIPT)


def _totals(rows: list[Data], *, timed: bool) -> Data:
    def total(of: Iterable[Data], field: str) -> Any:
        return sum(row[field] for row in of) if timed or "seconds" not in field else None

    precisions = list(dict.fromkeys(row["precision"] for row in rows))
    by_precision = {}
    for precision in precisions:
        of = [row for row in rows if row["precision"] == precision]
        by_precision[precision] = {field: total(of, field) for field in ("calls", "seconds")}
    fields = ("calls", "casts", "bytes", "hits", "seconds", "cast_seconds")
    return {**{field: total(rows, field) for field in fields}, "by_precision": by_precision}
