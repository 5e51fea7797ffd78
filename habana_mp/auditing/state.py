"""The tensors of a training by their names, and the updates of weights that the next step rounds to zero: copies make
the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

from habana_mp.diagnosis.exact import RandomState, is_lower
from habana_mp.patches.tools.in_float32 import value_in_float32
from habana_mp.patches.torch.optimizer_steps import step_copy
from habana_mp.patches.torch.reductions import reductions

Named = dict[str, torch.Tensor]
_Converter = Callable[[torch.Tensor], torch.Tensor]


class State:
    """The tensors of a model and its optimizer. Nothing is copied or changed."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self.model, self.optimizer = model, optimizer
        named = _held(dict(model.named_parameters(remove_duplicate=False)))
        self._names = {id(one): name for name, one in reversed(named.items())}
        #: The model's weights, each once, and the further names of tied ones.
        self.weights = {name: one for name, one in named.items() if self._names[id(one)] == name}
        self.tied = {name: one for name, one in named.items() if self._names[id(one)] != name}
        self.buffers = _held(dict(model.named_buffers()))
        self.saved = _held(model.state_dict())
        self.trained = self._assumed() if optimizer is None else self._of_optimizer(optimizer)
        self.frozen = {name: one for name, one in self.weights.items() if name not in self.trained}
        self.gradients = {name: one.grad for name, one in self.trained.items() if one.grad is not None}
        self.states = {
            f"{name} {key}": value
            for name, weight in self.trained.items()
            for key, value in _held(self.state_of(weight)).items()
            if value.dim()  # no counter of steps
        }
        self.reductions = list(reductions(model))

    def state_of(self, weight: torch.Tensor) -> Mapping[str, Any]:
        """Returns the optimizer's state for a weight. `get` adds no entry to its defaultdict."""
        return {} if self.optimizer is None else self.optimizer.state.get(weight, {})

    def averages(self) -> Named:
        """Returns the averages of weights that the model holds."""
        found: Named = {}
        for name, module in self.model.named_modules():
            if isinstance(module, AveragedModel):
                found.update(module.named_parameters(name))
        return found

    def _of_optimizer(self, optimizer: torch.optim.Optimizer) -> Named:
        """Returns the weights of the optimizer. The name of one outside of the model, such as a float32 copy, is its
        position."""
        found = {}
        for number, group in enumerate(optimizer.param_groups):
            for place, one in enumerate(group["params"]):
                if one.requires_grad:
                    found[self._names.get(id(one), f'param_groups[{number}]["params"][{place}]')] = one
        return _held(found)

    def _assumed(self) -> Named:
        """Returns the weights that require a gradient if the model is in train mode, and those that have one."""
        averages = self.averages()
        return {
            name: one
            for name, one in self.weights.items()
            if one.requires_grad and (self.model.training or one.grad is not None) and name not in averages
        }

    @cached_property
    def lower_weights(self) -> Named:
        """The trained weights in lower precision. Empty if the optimizer's state has a float32 copy of each."""
        lower = {name: one for name, one in self.trained.items() if is_lower(one)}
        states = [self.state_of(one) for one in lower.values()]
        keys = set(states[0]).intersection(*states) if states else ()
        has_copies = any(all(_is_copy(self.state_of(one)[key], one) for one in lower.values()) for key in keys)
        return {} if has_copies else lower

    @cached_property
    def updates(self) -> dict[str, Updates]:
        """The updates of each layer with lower weights. They are 0 if there are no gradients, or if the step of the
        copy fails."""
        layers: dict[str, list[torch.Tensor]] = {}
        for name, weight in self.lower_weights.items():
            layers.setdefault(layer_of(name), []).append(weight)
        random = RandomState()
        try:
            return {layer: _updates(self.optimizer, weights) for layer, weights in layers.items()}
        finally:
            random.restore()


def by_dtype(named: Named) -> Iterable[tuple[torch.dtype, Named]]:
    found: dict[torch.dtype, Named] = {}
    for name, one in named.items():
        found.setdefault(one.dtype, {})[name] = one
    return found.items()


def _held(named: Mapping[str, Any]) -> Named:
    """Returns the tensors among these values, without those that get a shape later."""
    return {name: one for name, one in named.items() if isinstance(one, torch.Tensor) and not is_lazy(one)}


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the part of a sharded tensor that this process holds, or the tensor itself."""
    to_local: Any = getattr(tensor, "to_local", None)  # of a DTensor
    part: torch.Tensor = tensor if to_local is None else to_local()
    return part


def _is_copy(value: object, weight: torch.Tensor) -> bool:
    """True if the value is the weight in a higher precision."""
    if not isinstance(value, torch.Tensor) or value.shape != weight.shape or is_lower(value):
        return False
    return torch.equal(local(value).to(weight.dtype), local(weight))


def layer_of(name: str) -> str:
    """Returns the path of the module that has this weight."""
    return name.rpartition(".")[0]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---- the next step ---------------------------------------------------------------------------------------------------


class Updates(NamedTuple):
    """The number of elements that a step changes in float32, and of those that it leaves in lower precision."""

    all: int = 0
    lost: int = 0
    #: The error of the step of the copy, if it failed.
    failed: str = ""

    @property
    def share(self) -> float | None:
        return self.lost / self.all if self.all else None


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _updates(optimizer: torch.optim.Optimizer | None, weights: Sequence[torch.Tensor]) -> Updates:
    if optimizer is None or any(one.is_meta for one in weights) or all(one.grad is None for one in weights):
        return Updates()
    try:
        lower, exact = (_stepped(optimizer, weights, convert) for convert in (torch.Tensor.detach, value_in_float32))
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
