"""AdamW, Adam, SGD and Adagrad that step on the CPU in one pass over memory. They replace torch.optim's classes.

::

    from habana_mp.optim import AdamW   # instead of torch.optim

    optimizer = AdamW(model.parameters(), lr=1e-3)

Each is a subclass of torch's class of the same name and differs from it only in :meth:`step`: arguments, groups, state,
hooks, schedulers, closures and ``torch.amp.GradScaler`` work as in torch.

The kernels step a weight if it, its gradient and its state are float32 on the CPU and have the same memory layout,
without gaps. Their arithmetic is that of torch's ``fused=True``, whatever ``fused`` and ``foreach`` are. Any other
weight of the same optimizer (sparse, complex, in another dtype or on another device, ``capturable``,
``differentiable``) is stepped by torch's own code according to ``fused`` and ``foreach``, and so is every weight inside
``torch.compile``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adagrad import adagrad as _torch_adagrad
from torch.optim.adam import adam as _torch_adam
from torch.optim.adamw import adamw as _torch_adamw
from torch.optim.optimizer import Optimizer
from torch.optim.sgd import sgd as _torch_sgd

from habana_mp import _core
from habana_mp.patches.torch.kernel_steps import (
    Stepping,
    is_number,
    loss_of,
    others,
    picked,
    step_by_kernels,
    writes_cached_casts,
)
from habana_mp.patches.torch.optimizers import (
    ADAMW_ASKS_FOR_AMSGRAD,
    INSIDES_ARE_KNOWN,
    as_torchs_step,
    check_capture,
    foreach,
    gather,
)

__all__ = ["SGD", "Adagrad", "Adam", "AdamW"]

_core.bind_torch()

_Group = dict[str, Any]
_Closure = Callable[[], Any] | None


@writes_cached_casts
class AdamW(torch.optim.AdamW):
    """:class:`torch.optim.AdamW` with steps by habana_mp's kernels. It takes the same arguments."""

    @as_torchs_step
    def step(self, closure: _Closure = None) -> Any:
        """Performs a single optimization step, as torch does."""
        check_capture(self)
        return _step(self, closure, _step_adam)


@writes_cached_casts
class Adam(torch.optim.Adam):
    """:class:`torch.optim.Adam` with steps by habana_mp's kernels. It takes the same arguments."""

    @as_torchs_step
    def step(self, closure: _Closure = None) -> Any:
        """Performs a single optimization step, as torch does."""
        check_capture(self)
        return _step(self, closure, _step_adam)


@writes_cached_casts
class SGD(torch.optim.SGD):
    """:class:`torch.optim.SGD` with steps by habana_mp's kernels. It takes the same arguments."""

    #: Set only during a step with LARS.
    _lars: Lars | None = None

    @as_torchs_step
    def step(self, closure: _Closure = None) -> Any:
        """Performs a single optimization step, as torch does."""
        return _step(self, closure, _step_sgd)


@writes_cached_casts
class Adagrad(torch.optim.Adagrad):
    """:class:`torch.optim.Adagrad` with steps by habana_mp's kernels. It takes the same arguments."""

    @as_torchs_step
    def step(self, closure: _Closure = None) -> Any:
        """Performs a single optimization step, as torch does."""
        return _step(self, closure, _step_adagrad)


if not INSIDES_ARE_KNOWN:  # then the classes inherit torch's own steps
    for _optimizer in (AdamW, Adam, SGD, Adagrad):
        del _optimizer.step


def _step(optimizer: Optimizer, closure: _Closure, step_group: Callable[[Any, _Group], None]) -> Any:
    loss = loss_of(closure)
    for group in optimizer.param_groups:
        step_group(optimizer, group)
    return loss


def _step_adam(optimizer: Any, group: _Group) -> None:
    columns: list[list[Tensor]] = [[] for _ in range(6)]
    amsgrad = [group["amsgrad"]] if ADAMW_ASKS_FOR_AMSGRAD and isinstance(optimizer, AdamW) else []
    has_complex = gather(optimizer, group, *columns[:2], *amsgrad, *columns[2:])
    decoupled = group.get("decoupled_weight_decay", isinstance(optimizer, AdamW))
    scaling = _Scaling(optimizer)
    options = {name: group[name] for name in ("lr", "weight_decay", "eps")}
    options["beta1"], options["beta2"] = group["betas"]

    def by_torch(*chosen: list[Tensor], capturable: bool = group["capturable"], **how: Any) -> None:
        update: Any = _torch_adamw if decoupled else _torch_adam
        update(
            *chosen,
            has_complex=has_complex,
            amsgrad=group["amsgrad"],
            maximize=group["maximize"],
            capturable=capturable,
            differentiable=group["differentiable"],
            **options,
            **how,
        )

    numbers = _numbers(options) if _may_step(group, scaling) else None
    if numbers is None:
        _leave(by_torch, group, scaling, columns)
        return
    if scaling.skips:
        return
    grad_scale = scaling.value

    def attempt(columns: Sequence[list[Any]]) -> Stepping:
        params, grads, averages, squares, largest, steps = columns
        states = [averages, squares, largest] if group["amsgrad"] else [averages, squares]
        stepping = Stepping(params, grads, states, steps, writes_grads=grad_scale is not None)
        _leave(by_torch, group, scaling, [stepping.left_out(column) for column in columns])
        stepping.run(
            "adam",
            decoupled=decoupled,
            maximize=group["maximize"],
            corrects=True,
            grad_scale=grad_scale,
            **numbers,
        )
        return stepping

    step_by_kernels(columns, attempt, lambda left: _leave(by_torch, group, scaling, left))


class Lars:
    """The scaling of gradients, with the weight decay included, before a step of SGD.

    Args:
        is_scaled: True for each weight whose gradient is scaled. To the others only the decay is added.
        factor: The scale of all gradients.
        eps: Added to the gradient's norm.
    """

    def __init__(self, is_scaled: dict[Tensor, bool], factor: float, eps: float) -> None:
        self.is_scaled = is_scaled
        self.factor = factor
        self.eps = eps

    def numbers(self, params: list[Tensor]) -> dict[str, Any]:
        """Returns the kernel's arguments for the scaling."""
        scaled = [self.is_scaled[param] for param in params]
        return {"lars": scaled, "lars_factor": self.factor, "lars_eps": self.eps}

    def scale_(self, params: list[Tensor], grads: list[Tensor], decay: float, *, maximize: bool) -> None:
        """Adds the decay to these gradients and scales them, in place."""
        for param, grad in zip(params, grads, strict=True):
            size, size_of_grad = torch.linalg.vector_norm(param), torch.linalg.vector_norm(grad)
            if decay:
                grad.add_(param, alpha=-decay if maximize else decay)
            if self.is_scaled[param]:
                ratio = self.factor * size / (size_of_grad + decay * size + self.eps)
                grad.mul_(torch.where((size > 0) & (size_of_grad > 0), ratio, torch.ones_like(ratio)))


def _step_sgd(optimizer: Any, group: _Group) -> None:
    params: list[Tensor] = []
    grads: list[Tensor] = []
    momenta: list[Tensor | None] = []
    is_sparse = gather(optimizer, group, params, grads, momenta)
    scaling = _Scaling(optimizer)
    options = {name: group[name] for name in ("lr", "momentum", "dampening", "weight_decay")}
    lars: Lars | None = optimizer._lars

    def by_torch(params: list[Tensor], grads: list[Tensor], momenta: list[Tensor | None], **how: Any) -> None:
        if lars is not None:
            lars.scale_(params, grads, options["weight_decay"], maximize=group["maximize"])
        _torch_sgd(
            params,
            grads,
            momenta,
            has_sparse_grad=is_sparse,
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            **(options if lars is None else {**options, "weight_decay": 0.0}),
            **how,
        )
        keep(params, momenta)

    def keep(params: list[Tensor], momenta: Sequence[Tensor | None]) -> None:
        for param, momentum in zip(params, momenta, strict=False):
            optimizer.state[param]["momentum_buffer"] = momentum

    numbers = _numbers(options) if _may_step(group, scaling) else None
    if numbers is None:
        _leave(by_torch, group, scaling, [params, grads, momenta])
        return
    if scaling.skips:
        return
    grad_scale = scaling.value

    def attempt(columns: Sequence[list[Any]]) -> Stepping:
        params, grads, momenta = columns
        begins = [momentum is None for momentum in momenta]
        ours = [
            _like(grad) if begin else momentum for grad, momentum, begin in zip(grads, momenta, begins, strict=False)
        ]
        stepping = Stepping(params, grads, [ours] if momenta else [], writes_grads=grad_scale is not None)
        _leave(by_torch, group, scaling, [stepping.left_out(column) for column in columns])
        stepping.run(
            "sgd",
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            grad_scale=grad_scale,
            begins=begins or [False] * len(params),
            **({} if lars is None else lars.numbers(params)),
            **numbers,
        )
        keep(stepping.taken(params), stepping.taken(ours))
        return stepping

    step_by_kernels([params, grads, momenta], attempt, lambda left: _leave(by_torch, group, scaling, left))


def _step_adagrad(optimizer: Any, group: _Group) -> None:
    columns: list[list[Tensor]] = [[] for _ in range(4)]
    is_sparse, has_complex = gather(optimizer, group, *columns)
    scaling = _Scaling(optimizer)
    options = {name: group[name] for name in ("lr", "lr_decay", "weight_decay", "eps")}

    def by_torch(*chosen: list[Tensor], **how: Any) -> None:
        update: Any = _torch_adagrad
        update(
            *chosen,
            has_sparse_grad=is_sparse,
            has_complex=has_complex,
            maximize=group["maximize"],
            differentiable=group["differentiable"],
            **options,
            **how,
        )

    is_scaled = scaling.grad_scale is not None
    numbers = _numbers(options) if _may_step(group, scaling) and not is_scaled else None
    if numbers is None:
        _leave(by_torch, group, scaling, columns)
        return
    if scaling.skips:
        return

    def attempt(columns: Sequence[list[Any]]) -> Stepping:
        params, grads, sums, steps = columns
        stepping = Stepping(params, grads, [sums], steps)
        _leave(by_torch, group, scaling, [stepping.left_out(column) for column in columns])
        stepping.run("adagrad", maximize=group["maximize"], **numbers)
        return stepping

    step_by_kernels(columns, attempt, lambda left: _leave(by_torch, group, scaling, left))


class _Scaling:
    """The values that GradScaler sets on an optimizer that unscales the gradients itself."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.grad_scale: Tensor | None = getattr(optimizer, "grad_scale", None)
        self.found_inf: Tensor | None = getattr(optimizer, "found_inf", None)

    @property
    def is_ours(self) -> bool:
        """True if the values can be read without waiting for a device."""
        return all(is_number(one) for one in (self.grad_scale, self.found_inf) if one is not None)

    @property
    def value(self) -> float | None:
        return None if self.grad_scale is None else float(self.grad_scale)

    @property
    def skips(self) -> bool:
        """True if a gradient is infinite, so that the step must not change anything."""
        return self.found_inf is not None and float(self.found_inf) != 0


def _numbers(options: _Group) -> dict[str, float] | None:
    """Returns the options as numbers, or None if only torch can handle one of them."""
    if not all(is_number(value) for value in options.values()):
        return None
    return {name: float(value) for name, value in options.items()}


def _may_step(group: _Group, scaling: _Scaling) -> bool:
    special = group.get("capturable", False) or group["differentiable"] or torch.compiler.is_compiling()
    refused = scaling.grad_scale is not None and not group["fused"]
    return not special and not refused and scaling.is_ours


def _leave(by_torch: Callable[..., None], group: _Group, scaling: _Scaling, columns: Sequence[list[Any]]) -> None:
    """Lets torch's own code step these weights."""
    # torch's fused step for the CPU assumes that a weight, its gradient and its state have the same memory layout. That
    # of SGD does not change weights in half precision.
    weights = zip(*(column for column in columns if column), strict=True)
    leaves_lower = "momentum" in group
    apart = [
        i
        for i, tensors in enumerate(weights)
        if group["fused"] and (_lie_apart(*tensors) or (leaves_lower and _is_lower_on_cpu(tensors[0])))
    ]
    fused = [others(column, apart) for column in columns]
    if fused[0]:
        scale = {"grad_scale": scaling.grad_scale, "found_inf": scaling.found_inf}
        by_torch(*fused, foreach=group["foreach"], fused=group["fused"], **scale)
    if apart and not scaling.skips:
        single = [picked(column, apart) for column in columns]
        if scaling.grad_scale is not None:
            foreach.div_(single[1], scaling.grad_scale)
        # The fused step for the CPU ignores `capturable`, so this step ignores it too.
        plain = {"capturable": False} if "capturable" in group else {}
        by_torch(*single, foreach=False, fused=False, **plain)


def _lie_apart(param: Tensor, *others: Tensor | None) -> bool:
    tensors = [param, *(one for one in others if one is not None and one.shape == param.shape)]
    if param.device.type != "cpu" or any(one.layout is not torch.strided for one in tensors):
        return False
    dense = _steps(torch.empty_like(param, device="meta"))
    return any(_steps(one) != dense for one in tensors)


def _steps(tensor: Tensor) -> list[int]:
    """Returns the strides that matter: those of dimensions whose size is not 1."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def _is_lower_on_cpu(param: Tensor) -> bool:
    return param.device.type == "cpu" and param.dtype in (torch.bfloat16, torch.float16)


def _like(grad: Tensor) -> Tensor | None:
    return torch.empty_like(grad) if grad.layout is torch.strided else None
