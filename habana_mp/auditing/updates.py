"""Predicts the updates of weights that the next step of an optimizer rounds to zero. Copies make the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch

from habana_mp.auditing.state import State, layer_of, local
from habana_mp.diagnosis.exact import RandomState, is_lower
from habana_mp.patches.torch.unwrapped_steps import step_copy

_Converter = Callable[[torch.Tensor], torch.Tensor]


class Updates(NamedTuple):
    """The number of elements that a step changes in float32, and of those that it leaves in lower precision."""

    all: int = 0
    lost: int = 0
    #: The error of the step of the copy, if it failed.
    failed: str = ""

    @property
    def share(self) -> float | None:
        return self.lost / self.all if self.all else None


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def updates_by_layer(state: State) -> dict[str, Updates]:
    """Returns the updates of each layer with lower weights. They are 0 if there are no gradients, or if the step of the
    copy fails."""
    layers: dict[str, list[torch.Tensor]] = {}
    for name, weight in state.lower_weights.items():
        layers.setdefault(layer_of(name), []).append(weight)
    random = RandomState()
    try:
        return {layer: _updates(state.optimizer, weights) for layer, weights in layers.items()}
    finally:
        random.restore()


def _updates(optimizer: torch.optim.Optimizer | None, weights: Sequence[torch.Tensor]) -> Updates:
    if optimizer is None or any(one.is_meta for one in weights) or all(one.grad is None for one in weights):
        return Updates()
    try:
        lower, exact = (_stepped(optimizer, weights, convert) for convert in (torch.Tensor.detach, _in_float32))
    except Exception as error:  # an optimizer may be any code
        return Updates(failed=f"{type(error).__name__}: {error}")
    found = [0, 0]
    for weight, low, high in zip(weights, lower, exact, strict=True):
        before = local(weight.detach())
        moved = high != before
        found[0] += int(moved.sum())
        found[1] += int((moved & (low == before)).sum())
    return Updates(all=found[0], lost=found[1])


def _stepped(
    optimizer: torch.optim.Optimizer, weights: Sequence[torch.Tensor], convert: _Converter
) -> list[torch.Tensor]:
    """Returns copies of the weights after a step of a copy of the optimizer, which has no other weights."""
    copies = {id(one): _copied_weight(one, convert) for one in weights}
    # All that the optimizer refers to is copied with it, except the other weights and their state.
    memo: dict[int, Any] = {id(one): one.new_empty(0) for group in optimizer.param_groups for one in group["params"]}
    memo |= {id(one): {} for one in optimizer.state.values()} | copies
    state: Any = defaultdict(dict)
    for one in weights:
        if one in optimizer.state:
            state[copies[id(one)]] = {
                key: convert(local(value)).clone() if isinstance(value, torch.Tensor) else deepcopy(value, memo)
                for key, value in optimizer.state[one].items()
            }
    copy = object.__new__(type(optimizer))
    memo |= {id(optimizer): copy, id(optimizer.state): state}
    vars(copy).update(deepcopy(vars(optimizer), memo))
    own = set(map(id, copies.values()))
    for group in copy.param_groups:
        group["params"][:] = [one for one in group["params"] if id(one) in own]
    step_copy(copy)
    return [copies[id(one)] for one in weights]


def _copied_weight(weight: torch.Tensor, convert: _Converter) -> torch.Tensor:
    copy = torch.nn.Parameter(convert(local(weight.detach())).clone())
    if weight.grad is not None:
        gradient = convert(local(weight.grad.detach())).clone()
        if gradient.dtype is not copy.dtype:
            copy.grad_dtype = gradient.dtype
        copy.grad = gradient
    return copy


def _in_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if is_lower(tensor) else tensor
