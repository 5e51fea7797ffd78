"""``habana_frameworks.torch.hpex.optimizers``: the optimizers that Gaudi fuses, under their names.

Optimizers that torch has too derive from torch's classes. The entries of state dictionaries have torch's names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim import Optimizer

_Params = Iterable[Any]
_Closure = Callable[[], Any] | None


def make_gradients_dense(params: Iterable[Tensor]) -> None:
    """Makes sparse gradients dense."""
    for param in params:
        if param.grad is not None and param.grad.layout is not torch.strided:
            param.grad = param.grad.to_dense()


def _make_dense(optimizer: Optimizer, *_: Any, always: bool = True) -> None:
    """Makes sparse gradients dense where a step changes every value of a weight: always, or in groups with weight decay
    or momentum only."""
    for group in optimizer.param_groups:
        if always or group["weight_decay"] or group.get("momentum"):
            make_gradients_dense(group["params"])


def _choose_fused(optimizer: Optimizer, *_: Any) -> None:
    """Selects torch's fused step for the CPU where all tensors are contiguous, since that step ignores strides."""
    for group in optimizer.param_groups:
        is_fused = all(
            tensor.dtype is torch.float32 and tensor.device.type == "cpu" and tensor.is_contiguous()
            for param in group["params"]
            for tensor in (param, param.grad, *optimizer.state[param].values())
            if tensor is not None
        )
        group["fused"] = is_fused or None  # with None, torch chooses among its other steps


def _increment_versions(optimizer: Optimizer, *_: Any) -> None:
    """Lets a backward that needs the old weights raise. torch's fused step increments no version."""
    for group in optimizer.param_groups:
        increment_version([param for param in group["params"] if param.grad is not None])


def _loss_of(closure: _Closure) -> Any:
    """Returns the result of a step's closure, called with gradients enabled; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class FusedAdamW(torch.optim.AdamW):
    """:class:`torch.optim.AdamW` with Gaudi's arguments and defaults, among them the option ``bias_correction``."""

    def __init__(
        self,
        params: _Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
    ) -> None:
        if not bias_correction:  # torch's step always corrects the averages, so another one takes its place
            if type(self) is not FusedAdamW:
                raise ValueError(f"`bias_correction` must be True in {type(self).__name__}: its step is torch's")
            self.__class__ = _UncorrectedAdamW
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.register_step_pre_hook(_make_dense)
        if bias_correction:
            self.register_step_pre_hook(_choose_fused)
            self.register_step_post_hook(_increment_versions)


class _UncorrectedAdamW(FusedAdamW):
    """AdamW without bias correction: it uses the averages as they are, although they begin at zero."""

    @torch.no_grad()
    def step(self, closure: _Closure = None) -> Any:
        """Performs a single optimization step."""
        loss = _loss_of(closure)
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    update = _adam_update(param.grad, _averages_of(self, param), group, corrects=False)
                    param.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update.mul_(group["lr"]))
        return loss


def _averages_of(optimizer: Optimizer, param: Tensor, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Returns the state of a weight: the averages of the gradient and of its square, and the count of steps.

    New averages have this dtype, or that of the weight if it is None.
    """
    state: dict[str, Tensor] = optimizer.state[param]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"] = torch.zeros_like(param, dtype=dtype)
        state["exp_avg_sq"] = torch.zeros_like(param, dtype=dtype)
    return state


def _adam_update(
    grad: Tensor,
    state: dict[str, Tensor],
    group: dict[str, Any],
    *,
    corrects: bool,
    averages_gradient: bool = True,
) -> Tensor:
    """Adds the gradient to its averages, and returns Adam's update, in float32 if the averages have less precision."""
    (beta1, beta2), average, square = group["betas"], state["exp_avg"], state["exp_avg_sq"]
    step = float(state["step"].add_(1))
    average.mul_(beta1).add_(grad, alpha=1 - beta1 if averages_gradient else 1.0)
    square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    dtype = torch.promote_types(average.dtype, torch.float32)
    correction, square_correction = (1 - beta1**step, 1 - beta2**step) if corrects else (1.0, 1.0)
    return (average.to(dtype) / correction).div_((square.to(dtype) / square_correction).sqrt_().add_(group["eps"]))


class FusedSGD(torch.optim.SGD):
    """:class:`torch.optim.SGD` with Gaudi's arguments."""

    def __init__(
        self,
        params: _Params,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov
        )
        self.register_step_pre_hook(partial(_make_dense, always=False))


class FusedResourceApplyMomentum(FusedSGD):
    """SGD with momentum and without dampening, like TensorFlow's operator of this name."""

    def __init__(
        self, params: _Params, lr: float | Tensor = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr, momentum, weight_decay=weight_decay)


class FusedAdagrad(torch.optim.Adagrad):
    """:class:`torch.optim.Adagrad` with Gaudi's arguments."""

    def __init__(
        self,
        params: _Params,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        super().__init__(params, lr, lr_decay, weight_decay, initial_accumulator_value, eps)
        self.register_step_pre_hook(partial(_make_dense, always=False))


class FusedLamb(Optimizer):
    """LAMB: Adam's update of each tensor is multiplied by the norm of the tensor divided by the norm of the update.

    Args:
        params: Weights, or groups of them.
        lr: The learning rate.
        bias_correction: True to correct the averages, which begin at zero.
        betas: The decay rates of the averages of the gradient and of its square.
        eps: Added to the square root of the second average.
        weight_decay: This many times the weight is added to the update, or to the gradient (see ``adam_w_mode``).
        dtype: The dtype of the averages; None for that of the weights.
        adam_w_mode: True to add the decay to the update; False to add it to the gradient.
        grad_averaging: True to multiply a gradient by ``1 - betas[0]`` before it is added to its average.
        max_grad_norm: All gradients together are scaled down to this norm. None or 0: they are not scaled.
        use_nvlamb: True to scale the updates of weights without decay too.
    """

    def __init__(
        self,
        params: _Params,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        dtype: torch.dtype | None = None,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        max_grad_norm: float | None = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
            "dtype": dtype,
            "adam_w_mode": adam_w_mode,
            "use_nvlamb": use_nvlamb,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: _Closure = None) -> Any:
        """Performs a single optimization step."""
        loss = _loss_of(closure)
        _make_dense(self)
        grads = [param.grad for group in self.param_groups for param in group["params"] if param.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        for group in self.param_groups:
            scale = torch.clamp(group["max_grad_norm"] / norm, max=1.0) if group["max_grad_norm"] else None
            for param in group["params"]:
                if param.grad is not None:
                    self._step(param, param.grad if scale is None else param.grad * scale.to(param.device), group)
        return loss

    def _step(self, param: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        decay = group["weight_decay"]
        if decay and not group["adam_w_mode"]:
            grad = grad.add(param, alpha=decay)
        update = _adam_update(
            grad,
            _averages_of(self, param, group["dtype"]),
            group,
            corrects=group["bias_correction"],
            averages_gradient=group["grad_averaging"],
        )
        if decay and group["adam_w_mode"]:
            update.add_(param, alpha=decay)
        if decay or group["use_nvlamb"]:
            norm, update_norm = torch.linalg.vector_norm(param), torch.linalg.vector_norm(update)
            update.mul_(torch.where((norm > 0) & (update_norm > 0), norm / update_norm, torch.ones_like(norm)))
        param.add_(update, alpha=-group["lr"])


class FusedLars(Optimizer):
    """LARS around another optimizer. Before its step, the weight decay is added to each gradient, and the gradient is
    multiplied by ``eeta * |weight| / (|gradient| + weight_decay * |weight| + eps)``. The norms are those before the
    decay is added.

    ``Optimizer.__init__`` is not called: the groups and the state are those of the inner optimizer.

    Args:
        optimizer: The inner optimizer, which makes the step.
        skip_mask: For each weight, in the order of the optimizer's weights: 1 to scale its gradient, 0 to add only the
            weight decay to it.
        eeta: The factor of the scaled gradients, known as the trust coefficient.
        eps: Added to the gradient's norm.

    Raises:
        ValueError: ``skip_mask`` does not have one entry for each weight.
    """

    def __init__(self, optimizer: Optimizer, skip_mask: Sequence[Any], eeta: float = 0.001, eps: float = 1e-8) -> None:
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if len(skip_mask) != count:
            raise ValueError(f"`skip_mask` must have one entry for each of {count} weights; got {len(skip_mask)}")
        self.optim = optimizer
        self._is_scaled = [bool(one) for one in skip_mask]
        self._eeta = eeta
        self._eps = eps

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["optim"], name)  # the groups, the state, hooks, ...

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __repr__(self) -> str:
        return f"FusedLars({self.optim!r})"

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the inner optimizer."""
        return self.optim.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of the inner optimizer."""
        self.optim.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group. The gradients of its weights are scaled."""
        self.optim.add_param_group(param_group)
        self._is_scaled += [True] * len(self.param_groups[-1]["params"])

    #: GradScaler must unscale the gradients itself: their norms are needed before the inner optimizer's step.
    _step_supports_amp_scaling = False

    @torch.no_grad()
    def step(self, closure: _Closure = None) -> Any:
        """Scales the gradients in place, and makes the inner optimizer's step. Returns the loss of the closure."""
        loss = _loss_of(closure)
        _make_dense(self)
        decays = [group.get("weight_decay", 0) for group in self.param_groups]
        is_scaled = iter(self._is_scaled)
        for group, decay in zip(self.param_groups, decays, strict=True):
            sign = -1 if group.get("maximize", False) else 1  # with it, the inner optimizer negates the gradient
            for param in group["params"]:
                self._scale(param, sign * decay, is_scaled=next(is_scaled))
        try:
            for group in self.param_groups:
                if "weight_decay" in group:
                    group["weight_decay"] = 0  # the gradients contain it already
            self.optim.step()
        finally:
            for group, decay in zip(self.param_groups, decays, strict=True):
                if "weight_decay" in group:
                    group["weight_decay"] = decay
        return loss

    def _scale(self, param: Tensor, decay: float, *, is_scaled: bool) -> None:
        """Adds the decay to the weight's gradient, and scales it, in place."""
        grad = param.grad
        if grad is None:
            return
        norm, grad_norm = torch.linalg.vector_norm(param), torch.linalg.vector_norm(grad)
        if decay:
            grad.add_(param, alpha=decay)
        if is_scaled:
            ratio = self._eeta * norm / (grad_norm + abs(decay) * norm + self._eps)
            grad.mul_(torch.where((norm > 0) & (grad_norm > 0), ratio, torch.ones_like(ratio)))
