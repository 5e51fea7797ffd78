"""A step of the core's kernels on the weights of one group of an optimizer.

Our kernels step a weight where it, its gradient and its state are float32 on the CPU and lie in memory alike, without
gaps. The others are left out, for whoever asks to step by torch's own functions.
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

#: Later releases count up many versions at once.
_COUNTS_MANY = "Iterable" in str(inspect.signature(increment_version))

_classes: set[type] = set()


def writes_kept_casts(optimizer: _T) -> _T:
    """A class, not those derived from it, whose steps write the kept casts of weights along with these."""
    _classes.add(optimizer)
    return optimizer


def is_ours(optimizer: Any) -> bool:
    """Do its steps write the kept casts of weights?"""
    return type(optimizer) in _classes


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """What a step's closure gives, with gradients; None where there is none."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def make_gradients_dense(params: Iterable[Tensor]) -> None:
    """Those that are sparse."""
    for param in params:
        if param.grad is not None and param.grad.layout is not torch.strided:
            param.grad = param.grad.to_dense()


#: A weight whose memory changes each time before it is stepped goes to torch in the end.
_ATTEMPTS = 3


def step_by_kernels(
    columns: Sequence[list[Any]],
    attempt: Callable[[Sequence[list[Any]]], Stepping],
    by_torch: Callable[[Sequence[list[Any]]], None],
) -> None:
    """Step each weight once: by the kernels, or by torch.

    Args:
        columns: Lists with one entry for each weight, or empty: the weights, their gradients, and their state.
        attempt: Called with columns. It has torch step the weights that the kernels leave out, and the kernels step
            the others. Some of these may get other memory before the kernels begin: these are attempted again.
        by_torch: Called with columns, to have torch step all of them.
    """
    for _ in range(_ATTEMPTS):
        stepping = attempt(columns)
        columns = [stepping.changed(column) for column in columns]
        if not columns[0]:
            return
    by_torch(columns)


class Stepping:
    """One step. What is to be left out is known before anything is written.

    Before the kernels begin all tensors are looked at again. A weight of which something has other memory by then, or
    is of another dtype or form, is left out too.

    Args:
        params: The weights.
        grads: Their gradients, written only where ``writes_grads``.
        states: Up to three lists of what else belongs to them, and is written.
        steps: Scalars that count their steps; empty where none are counted.
        writes_grads: Gradients are divided by GradScaler's scale, in place.
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
        """Of a list that has one entry for each weight, those of the weights that the kernels do not step."""
        return picked(column, self.plan.left_out)

    def changed(self, column: Sequence[Any]) -> list[Any]:
        """The weights that the step left out, because they changed before it."""
        return picked(column, self.plan.changed)

    def taken(self, column: Sequence[Any]) -> list[Any]:
        """Those of the weights that the kernels step."""
        return others(column, self.plan.left_out)

    def run(self, kernel: str, **numbers: Any) -> None:
        """Step the weights that are not left out, and write their kept casts.

        The weights that `changed` names are as they were.
        """
        try:
            getattr(self.plan, kernel)(**numbers)
        finally:
            count_writes(self.plan, self._writes, self.lowers)
        were_written(picked(self.params, self.plan.lowered), picked(self.lowers, self.plan.lowered))


def casts_to_write(params: list[Tensor]) -> list[Tensor | None]:
    """For each weight its kept cast, which is to be written with it, or None."""
    return _core.weights_casts_to_write(params)


def were_written(params: list[Tensor], lowers: list[Tensor]) -> None:
    """These casts hold the weights' new values."""
    _core.weights_were_written(params, lowers)


def count_writes(plan: _core.StepPlan, columns: Sequence[Sequence[Any]], lowers: Sequence[Tensor | None]) -> None:
    """Tell autograd what was written: a backward that needs the old values raises, as after torch's own step.

    Not before: a cast that another thread makes meanwhile would be taken for one of the new values.
    """
    for written in (*(others(column, plan.left_out) for column in columns), picked(lowers, plan.lowered)):
        if _COUNTS_MANY:
            increment_version(written)
        else:
            for tensor in written:
                increment_version(tensor)


def picked(column: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """The entries at these places; of an empty list none."""
    return [column[i] for i in places] if column else []


def others(column: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """The entries at all other places."""
    left_out = set(places)
    return [one for i, one in enumerate(column) if i not in left_out] if left_out else list(column)


def is_number(value: Any) -> bool:
    """Can it be read without waiting for a device?"""
    if isinstance(value, Tensor):
        return type(value) is Tensor and value.dim() == 0 and value.device.type == "cpu" and not value.is_complex()
    return isinstance(value, float | int)
