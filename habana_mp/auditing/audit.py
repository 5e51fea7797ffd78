"""The audit of a model and its optimizer: the dtypes of what a training holds, and the precision that it loses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

import torch

from habana_mp import _core
from habana_mp.auditing.findings import findings_of
from habana_mp.auditing.state import Named, State, by_dtype, dtype_name, layer_of, local, percent
from habana_mp.diagnosis.exact import apart
from habana_mp.reporting.remedies import Finding

_COLUMNS = ("kind", "dtype", "tensors", "MB", "lost", "example")
_LOST = "lost updates"

#: The most layers that are printed.
_MOST_LAYERS = 10


@dataclass(frozen=True)
class Row:
    """The tensors of one kind and dtype. If ``kind`` is ``"lost updates"``, those of one layer."""

    kind: str
    dtype: str
    count: int
    bytes: int
    #: The first tensor, or the layer.
    name: str
    #: The share of the layer's updates that the next step rounds to zero, if known.
    lost: float | None = None
    #: The error of the optimizer's step on copies of the layer's weights, if it failed.
    failed: str = ""


@dataclass(frozen=True, repr=False)
class Audit:
    """The result of :func:`audit`. ``print`` shows the findings, then a table."""

    findings: tuple[Finding, ...]
    #: One row for each kind of tensors and dtype, then one for each layer that loses updates, the worst first.
    rows: tuple[Row, ...]

    @property
    def healthy(self) -> bool:
        """True if there is no finding."""
        return not self.findings

    @property
    def _words(self) -> list[str]:
        found = [f"{number}. {one.kind}: {one.text}" for number, one in enumerate(self.findings, 1)]
        return found or ["Healthy: no weight, state, reduction or checkpoint loses precision."]

    @property
    def _table(self) -> list[tuple[str, ...]]:
        hidden = [one for one in self.rows if one.kind == _LOST][_MOST_LAYERS:]
        cells = (
            (one.kind, one.dtype, one.count, f"{one.bytes / 1e6:.3f}", percent(one.lost), one.name)
            for one in self.rows
            if one not in hidden
        )
        return [_COLUMNS, *(tuple(_core.printable(str(cell)) for cell in row) for row in cells)]

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self._table, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in self._table]
        return "\n".join((*self._words, "", *lines))

    def __repr__(self) -> str:
        return f"<Audit with {len(self.findings)} findings; print() shows them>"

    def _repr_html_(self) -> str:
        """Returns the HTML for a notebook."""
        words = "".join(f"<p>{escape(one)}</p>" for one in self._words)
        rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in self._table)
        return f"{words}<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Writes all data as JSON."""
        findings = [one.to_dict("kind", "name", "dtype", "text") for one in self.findings]
        parts = {"findings": findings, "rows": [asdict(one) for one in self.rows]}
        content = {"format": "habana-mp audit", "version": 1, "healthy": self.healthy, **parts}
        Path(path).write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def audit(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Audit:
    """Finds where a training loses precision in what it stores: weights, gradients, the optimizer's state, sums over
    ranks, and checkpoints. It changes nothing.

    Call it between the backward and the optimizer's step: then it also predicts the share of updates that the step
    rounds to zero. Copies make the step, one layer at a time.

    Args:
        model: The model, with its wrappers.
        optimizer: The optimizer of its weights. Without it those that require a gradient count as trained in train
            mode, and those that have a gradient.

    Raises:
        TypeError: ``model`` is no module, or ``optimizer`` is no optimizer.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module; got {type(model).__name__}")
    # Accelerate and Lightning wrap optimizers in this way.
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    if not isinstance(optimizer, torch.optim.Optimizer | None):
        raise TypeError(f"`optimizer` must be a torch.optim.Optimizer or None; got {type(optimizer).__name__}")
    with apart():
        state = State(model, optimizer)
        return Audit(findings_of(state, state.updates), tuple(_rows(state)))


def _rows(state: State) -> Iterator[Row]:
    kinds = {
        "trained weights": state.trained,
        "frozen weights": state.frozen,
        "tied weights": state.tied,
        "buffers": state.buffers,
        "gradients": state.gradients,
        "optimizer state": state.states,
        "state_dict": state.saved,
    }
    for kind, named in kinds.items():
        for dtype, those in by_dtype(named):
            yield Row(kind, dtype_name(dtype), len(those), _size(those), next(iter(those)))
    for dtype in dict.fromkeys(one.dtype for one in state.reductions):
        names = [one.name for one in state.reductions if one.dtype is dtype]
        yield Row("reductions", dtype_name(dtype), len(names), 0, names[0])
    for layer, one in sorted(state.updates.items(), key=lambda item: -(item[1].share or 0.0)):
        weights = {name: weight for name, weight in state.lower_weights.items() if layer_of(name) == layer}
        dtype = next(iter(weights.values())).dtype
        yield Row(_LOST, dtype_name(dtype), len(weights), _size(weights), layer, one.share, one.failed)


def _size(named: Named) -> int:
    return sum(local(one).numel() * one.element_size() for one in named.values())
