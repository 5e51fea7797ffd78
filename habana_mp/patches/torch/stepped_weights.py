"""What optimizers step, for the report: weights, gradients and states in lower precision, and the number of steps."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from habana_mp.patches.tools.notes import no_notes
from habana_mp.policy.precisions import PRECISIONS

#: The words about what the steps of an optimizer update in lower precision, by the name of its class.
found: dict[str, str] = {}
#: The number of steps that optimizers of each class took.
steps: Counter[str] = Counter()
_seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

#: Copies of optimizers. Their steps belong to an audit.
copies: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def look_at(optimizer: torch.optim.Optimizer) -> None:
    """Looks at the weights of an optimizer, after its first step. Counts its steps."""
    if optimizer in copies or no_notes.entrances:
        return
    steps[type(optimizer).__name__] += 1
    if optimizer in _seen:
        return
    _seen.add(optimizer)
    # An optimizer whose constructor passed torch's over may have neither.
    groups, states = getattr(optimizer, "param_groups", ()), getattr(optimizer, "state", {})
    weights = [one for group in groups for one in group["params"] if one.requires_grad]
    counts = Counter(one for weight in weights for one in _in_lower(weight, states.get(weight)))
    if counts:
        parts = [f"{count} of {len(weights)} {what} in {precision}" for (what, precision), count in counts.items()]
        name, text = type(optimizer).__name__, ", ".join(parts)
        known = found.get(name, text)
        found[name] = known if text in known else f"{known}; another {name} {text}"


def _in_lower(weight: torch.Tensor, state: Any) -> Iterator[tuple[str, str]]:
    groups: dict[str, list[Any]] = {"weights": [weight], "gradients": [weight.grad]}
    groups["states"] = [*state.values()] if isinstance(state, dict) else []
    for what, tensors in groups.items():
        dtypes = {one.dtype for one in tensors if isinstance(one, torch.Tensor)} - {torch.float32}
        for dtype in dtypes & PRECISIONS.keys():
            yield what, PRECISIONS[dtype]


def forget() -> None:
    """Lets each optimizer be looked at again."""
    steps.clear()
    found.clear()
    _seen.clear()
