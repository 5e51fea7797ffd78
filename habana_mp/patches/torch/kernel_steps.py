"""Steps the weights of one group of an optimizer by the core's kernels.

The kernels step a weight if it, its gradient and its state are float32 on the CPU and have the same memory layout,
without gaps. All other weights are left out; the caller steps them by torch's own functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from habana_mp import _core

_T = TypeVar("_T", bound=type)

#: Later releases increment the version counters of many tensors in one call.
_COUNTS_MANY = "Iterable" in str(inspect.signature(increment_version))

_classes: set[type] = set()


def writes_cached_casts(optimizer: _T) -> _T:
    """Registers a class, but not its subclasses, whose steps write the cached casts of weights with the weights."""
    _classes.add(optimizer)
    return optimizer


def is_ours(optimizer: Any) -> bool:
    """True if the steps of this optimizer write the cached casts of weights."""
    return type(optimizer) in _classes


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """Returns the result of a step's closure, called with gradients enabled; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def make_gradients_dense(params: Iterable[Tensor]) -> None:
    """Makes sparse gradients dense."""
    for param in params:
        if param.grad is not None and param.grad.layout is not torch.strided:
            param.grad = param.grad.to_dense()


#: torch steps a weight whose memory changes before the kernels begin in all of these attempts.
_ATTEMPTS = 3


def step_by_kernels(
    columns: Sequence[list[Any]],
    attempt: Callable[[Sequence[list[Any]]], Stepping],
    by_torch: Callable[[Sequence[list[Any]]], None],
) -> None:
    """Steps each weight once: by the kernels, or by torch.

    Args:
        columns: Lists with one entry for each weight, or empty: the weights, their gradients, and their state.
        attempt: Called with columns. It lets torch step the weights that the kernels leave out, and the kernels step
            the others. A weight whose memory changes before the kernels begin is attempted again.
        by_torch: Called with columns. It lets torch step all of their weights.
    """
    for _ in range(_ATTEMPTS):
        stepping = attempt(columns)
        columns = [stepping.changed(column) for column in columns]
        if not columns[0]:
            return
    by_torch(columns)


class Stepping:
    """One step. The weights to leave out are known before anything is written.

    All tensors are checked again before the kernels begin. A weight is left out too if one of its tensors has other
    memory, another dtype or another form by then.

    Args:
        params: The weights.
        grads: Their gradients, written only if ``writes_grads``.
        states: Up to three lists of other tensors that belong to the weights and are written.
        steps: Scalars that count their steps; empty if steps are not counted.
        writes_grads: True if the gradients are divided by GradScaler's scale, in place.
    """

    def __init__(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        states: Sequence[list[Any]],
        steps: Sequence[Tensor] = (),
        *,
        writes_grads: bool = False,
    ) -> None:
        self.params = params
        self.lowers = casts_to_write(params)
        self.plan = _core.StepPlan(
            params=params,
            grads=grads,
            states=list(states),
            steps=list(steps),
            lowers=self.lowers,
            writes_grads=writes_grads,
        )
        self._writes = [params, *states, steps, *([grads] if writes_grads else [])]

    def left_out(self, column: Sequence[Any]) -> list[Any]:
        """Returns the entries of the weights that the kernels do not step. A column has one entry for each weight."""
        return picked(column, self.plan.left_out)

    def changed(self, column: Sequence[Any]) -> list[Any]:
        """Returns the entries of the weights that the step left out because they changed before it."""
        return picked(column, self.plan.changed)

    def taken(self, column: Sequence[Any]) -> list[Any]:
        """Returns the entries of the weights that the kernels step."""
        return others(column, self.plan.left_out)

    def run(self, kernel: str, **numbers: Any) -> None:
        """Steps the weights that are not left out, and writes their cached casts.

        The weights that `changed` returns are unchanged.
        """
        try:
            getattr(self.plan, kernel)(**numbers)
        finally:
            count_writes(self.plan, self._writes, self.lowers)
        were_written(picked(self.params, self.plan.lowered), picked(self.lowers, self.plan.lowered))


def casts_to_write(params: list[Tensor]) -> list[Tensor | None]:
    """Returns for each weight the cached cast to write along with it, or None."""
    return _core.weights_casts_to_write(params)


def were_written(params: list[Tensor], lowers: list[Tensor]) -> None:
    """Declares that these casts hold the weights' new values."""
    _core.weights_were_written(params, lowers)


def count_writes(plan: _core.StepPlan, columns: Sequence[Sequence[Any]], lowers: Sequence[Tensor | None]) -> None:
    """Increments the version counters of the written tensors: a backward that needs the old values then raises, as
    after torch's own step.

    This is done after the writes: a cast that another thread makes in between would be taken for one of the new values.
    """
    for written in (*(others(column, plan.left_out) for column in columns), picked(lowers, plan.lowered)):
        if _COUNTS_MANY:
            increment_version(written)
        else:
            for tensor in written:
                increment_version(tensor)


def picked(column: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Returns the entries at these indices; an empty list has none."""
    return [column[i] for i in places] if column else []


def others(column: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Returns the entries at all other indices."""
    left_out = set(places)
    return [one for i, one in enumerate(column) if i not in left_out] if left_out else list(column)


def is_number(value: Any) -> bool:
    """True if the value can be read without waiting for a device."""
    if isinstance(value, Tensor):
        return type(value) is Tensor and value.dim() == 0 and value.device.type == "cpu" and not value.is_complex()
    return isinstance(value, float | int)
