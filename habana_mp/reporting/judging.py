"""Decides whether a call made a value that is not finite: of finite inputs, and not on purpose."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import torch

from habana_mp import _core
from habana_mp.ops import infinities
from habana_mp.patches.tools.pytree import tree_leaves


class Worst(IntEnum):
    """The worst of some values, as numbers of the core."""

    NUMBERS = 0
    INFINITIES = 1
    NANS = 2
    UNKNOWN = 3


#: ``made`` by the call, ``passed on`` from an input, a NaN made ``of an infinity``, or ``written`` by the user.
Verdict = Literal["made", "passed on", "of an infinity", "written"]


@dataclass(frozen=True, eq=False)
class Call:
    """A call whose result was checked. ``before``: the worst value of its arguments before it, or None."""

    called: Any
    operation: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    result: Any
    before: Worst | None = None

    def inputs(self) -> list[torch.Tensor]:
        return list(tensors_in((self.arguments, self.keywords)))

    def worst_input(self) -> Worst:
        if self.before is None or self.before is Worst.UNKNOWN:
            return worst_of(self.inputs())
        return self.before


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    return (one for one in tree_leaves(values) if isinstance(one, torch.Tensor))


def node_of(tensor: torch.Tensor) -> Any:
    """Returns the node of autograd's graph that made a tensor, or None. torch refuses to tell that of a view which was
    made without gradients and then written to."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def memory_of(tensor: torch.Tensor) -> int:
    """Returns the address of a tensor's memory, or of the tensor itself if it has none."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def worst_of(tensors: Iterable[torch.Tensor]) -> Worst:
    """Returns the worst of all values. Values that cannot be read count as numbers."""
    return max((_worst(one) for one in tensors), default=Worst.NUMBERS)


def _worst(tensor: torch.Tensor) -> Worst:
    found = Worst(_core.worst_value(tensor, True))
    if found is not Worst.UNKNOWN:
        return found
    try:
        with torch.no_grad():
            if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.device.type == "meta":
                return Worst.NUMBERS
            if bool(torch.isnan(tensor).any()):
                return Worst.NANS
            return Worst.INFINITIES if bool(torch.isinf(tensor).any()) else Worst.NUMBERS
    except (RuntimeError, NotImplementedError, TypeError):  # a class of tensors without these operations
        return Worst.NUMBERS


def judge(call: Call, worst: Worst) -> Verdict:
    """Returns whether the call made these values that are not finite."""
    inputs = call.worst_input()
    numbers = [one for one in tree_leaves((call.arguments, call.keywords)) if isinstance(one, float)]
    if worst is Worst.NANS:
        if inputs is Worst.NANS:
            return "passed on"
        if any(math.isnan(one) for one in numbers):
            return "written"
        return "of an infinity" if inputs is Worst.INFINITIES else "made"
    if inputs >= Worst.INFINITIES:
        return "passed on"
    name = infinities.plain(call.operation)
    if any(math.isinf(one) for one in numbers) or (name in infinities.MASKING and _adds_mask(call)):
        return "written"
    return "written" if name in infinities.POLES and not _is_finite_in_float64(call) else "made"


def _adds_mask(call: Call) -> bool:
    """True if there are only negative infinities, and an input has values next to the lowest number, as masks have."""
    with torch.no_grad():
        for result in tensors_in(call.result):
            if not result.is_floating_point() or not result.numel():
                continue
            if bool((result == math.inf).any()):
                return False
            lowest = 0.99 * torch.finfo(result.dtype).min
            others = [one for one in call.inputs() if one.is_floating_point() and one.numel()]
            if call.before is not None:  # the target has its new values
                others = [one for one in others if memory_of(one) != memory_of(result)]
            is_overwritten = call.before is not None and infinities.plain(call.operation) in infinities.SUMS
            if is_overwritten or any(float(one.min()) <= lowest for one in others):
                return True
            numbers = [one for one in tree_leaves((call.arguments, call.keywords)) if isinstance(one, float | int)]
            if any(one <= lowest for one in numbers):
                return True
    return False


def _is_finite_in_float64(call: Call) -> bool:
    """True if the same call with values in float64 has a finite result: then the precision is at fault."""
    if call.before is not None:
        return False  # the input was overwritten
    try:
        with torch.no_grad():
            arguments, keywords = _widened(call.arguments), _widened(call.keywords)
            return worst_of(tensors_in(call.called(*arguments, **keywords))) is Worst.NUMBERS
    except (RuntimeError, NotImplementedError, TypeError):
        return False


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _widened(one) for key, one in value.items()}
    return type(value)(map(_widened, value)) if type(value) in (list, tuple) else value
