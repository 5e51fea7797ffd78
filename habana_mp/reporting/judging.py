"""Decides whether a call made a value that is not finite: of finite inputs, and not on purpose."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import torch

from habana_mp import _core
from habana_mp.ops import infinities
from habana_mp.patches.tools.pytree import tree_leaves, tree_map


class Worst(IntEnum):
    """The worst of some values, as numbers of the core."""

    NUMBERS = 0
    INFINITIES = 1
    NANS = 2
    UNKNOWN = 3


#: ``made`` by the call, ``passed on`` from an input that the code did not write, or ``written`` by the code.
Verdict = Literal["made", "passed on", "written"]


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
        return tensors_in((self.arguments, self.keywords))

    def results(self) -> list[torch.Tensor]:
        return tensors_in(self.result)

    def numbers(self) -> list[float]:
        """Returns the numbers that the code writes."""
        return [one for one in tree_leaves((self.arguments, self.keywords)) if isinstance(one, float | int)]

    def worst_input(self) -> Worst:
        if self.before is None or self.before is Worst.UNKNOWN:
            return worst_of(self.inputs())
        return self.before


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Returns the tensors in arguments or results, also those in lists."""
    if isinstance(values, torch.Tensor):
        return [values]
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


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
            if bool(torch.isnan(tensor).any()):
                return Worst.NANS
            return Worst.INFINITIES if bool(torch.isinf(tensor).any()) else Worst.NUMBERS
    except (RuntimeError, NotImplementedError, TypeError):  # a class of tensors without these operations
        return Worst.NUMBERS


def judge(call: Call, worst: Worst, *, is_of_written: bool) -> Verdict:
    """Returns whether the call made these values that are not finite. ``is_of_written``: the code wrote infinities into
    an input."""
    inputs = call.worst_input()
    if inputs is Worst.NANS:
        return "passed on"
    if worst is Worst.NANS:
        if any(math.isnan(one) for one in call.numbers()):
            return "written"
        return "made" if inputs is Worst.NUMBERS or is_of_written else "passed on"
    if inputs is Worst.INFINITIES:
        return "written" if is_of_written else "passed on"
    name = infinities.plain(call.operation)
    if any(math.isinf(one) for one in call.numbers()) or (name in infinities.MASKING and _adds_mask(call)):
        return "written"
    return "written" if name in infinities.POLES and not _is_finite_in_float64(call) else "made"


def _adds_mask(call: Call) -> bool:
    """True if there are only negative infinities, and an input has values next to the lowest number, as masks have."""
    results = [one for one in call.results() if one.is_floating_point() and one.numel()]
    with torch.no_grad():
        if not results or any(bool((one == math.inf).any()) for one in results):
            return False
        overwritten = set(map(memory_of, results)) if call.before is not None else set()
        if overwritten and infinities.plain(call.operation) in infinities.SUMS:
            return True  # the target has its new values, and may have been a mask
        inputs = [one for one in call.inputs() if one.is_floating_point() and one.numel()]
        values = [float(one.min()) for one in inputs if memory_of(one) not in overwritten] + call.numbers()
        return min(values, default=0.0) <= 0.99 * torch.finfo(results[0].dtype).min


def _is_finite_in_float64(call: Call) -> bool:
    """True if the same call with values in float64 has a finite result: then the precision is at fault."""
    if call.before is not None:
        return False  # the input was overwritten
    try:
        with torch.no_grad():
            arguments, keywords = tree_map(_widened, (call.arguments, call.keywords))
            return worst_of(tensors_in(call.called(*arguments, **keywords))) is Worst.NUMBERS
    except (RuntimeError, NotImplementedError, TypeError):
        return False


def _widened(value: Any) -> Any:
    return value.detach().double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
