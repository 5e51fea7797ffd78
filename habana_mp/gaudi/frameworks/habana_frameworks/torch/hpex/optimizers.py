"""``habana_frameworks.torch.hpex.optimizers``: the optimizers that Gaudi fuses, under their names.

Those that torch has are torch's, stepped on the CPU by habana_mp's kernels (:mod:`habana_mp.optim`). State dictionaries
have torch's names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from habana_mp import hmp, optim

__all__ = [
    "FusedAdagrad",
    "FusedAdamW",
    "FusedLamb",
    "FusedLars",
    "FusedResourceApplyMomentum",
    "FusedSGD",
]

_Params = Iterable[Any]
_Closure = Callable[[], Any] | None


def _made_dense(optimizer: Optimizer, *_: Any) -> None:
    """Gradients that are sparse become dense: these optimizers move every weight in every step."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None and param.grad.layout is not torch.strided:
                param.grad = param.grad.to_dense()


class FusedAdamW(optim.AdamW):
    """:class:`torch.optim.AdamW`, and ``bias_correction=False`` besides."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> FusedAdamW:
        bias_correction = keywords.get("bias_correction", arguments[5] if len(arguments) > 5 else True)
        return super().__new__(cls if bias_correction or cls is not FusedAdamW else _UncorrectedAdamW)

    def __init__(
        self,
        params: _Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.register_step_pre_hook(_made_dense)


class _UncorrectedAdamW(FusedAdamW):
    """The averages are taken as they are, although they begin with zero."""

    @torch.no_grad()
    def step(self, closure: _Closure = None) -> Any:
        """Perform a single optimization step."""
        loss = _loss(closure)
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["step"] = torch.zeros(())
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(param), torch.zeros_like(param)
                state["step"] += 1
                state["exp_avg"].lerp_(param.grad, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(param.grad, param.grad, value=1 - beta2)
                param.mul_(1 - lr * group["weight_decay"])
                param.sub_(lr * state["exp_avg"] / (state["exp_avg_sq"].sqrt() + group["eps"]))
        return loss


class FusedSGD(optim.SGD):
    """:class:`torch.optim.SGD`."""

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
        if momentum or weight_decay:
            self.register_step_pre_hook(_made_dense)


class FusedResourceApplyMomentum(optim.SGD):
    """SGD with momentum, as TensorFlow's operator of this name has it: the momentum adds up whole gradients."""

    def __init__(
        self, params: _Params, lr: float | Tensor = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
        if momentum or weight_decay:
            self.register_step_pre_hook(_made_dense)


class FusedAdagrad(torch.optim.Adagrad):
    """:class:`torch.optim.Adagrad`."""

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
        if weight_decay:
            self.register_step_pre_hook(_made_dense)  # torch's own refuses decay with sparse gradients


class FusedLamb(Optimizer):
    """LAMB: Adam's update of each tensor is scaled by the tensor's norm over the update's.

    Args:
        params: Weights, or groups of them.
        lr: The learning rate.
        bias_correction: Correct the averages for having begun with zero.
        betas: How much is kept of the averages of the gradient and of its square.
        eps: Added to the square's root.
        weight_decay: Pulls weights towards zero.
        dtype: What the averages are kept in; None for the weights' own.
        adam_w_mode: The decay is part of the update; else of the gradient.
        grad_averaging: The gradient is averaged; else whole gradients add up.
        max_grad_norm: All gradients together are scaled down to this norm; None or 0 leaves them.
        use_nvlamb: Scale tensors without decay too.
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
        """Perform a single optimization step."""
        loss = _loss(closure)
        with hmp.disable_casts():
            _made_dense(self)
            grads = [one.grad for group in self.param_groups for one in group["params"] if one.grad is not None]
            norm = torch.nn.utils.get_total_norm(grads) if grads else None
            for group in self.param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        self._step(param, group, norm)
        return loss

    def _step(self, param: Tensor, group: dict[str, Any], norm: Any) -> None:
        beta1, beta2 = group["betas"]
        decay, state, grad = group["weight_decay"], self.state[param], param.grad
        assert grad is not None
        if group["max_grad_norm"]:
            grad = grad / torch.clamp(norm / group["max_grad_norm"], min=1.0).to(grad.device)
        if not group["adam_w_mode"] and decay:
            grad = grad + decay * param
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(param, dtype=group["dtype"])
            state["exp_avg_sq"] = torch.zeros_like(param, dtype=group["dtype"])
        state["step"] += 1
        average, square = state["exp_avg"], state["exp_avg_sq"]
        average.mul_(beta1).add_(grad, alpha=1 - beta1 if group["grad_averaging"] else 1.0)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        step = float(state["step"])
        correction1, correction2 = (1 - beta1**step, 1 - beta2**step) if group["bias_correction"] else (1.0, 1.0)
        update = (average / correction1) / ((square / correction2).sqrt() + group["eps"])
        if group["adam_w_mode"] and decay:
            update = update + decay * param
        lr = group["lr"]
        if decay or group["use_nvlamb"]:
            size, size_of_update = torch.linalg.vector_norm(param), torch.linalg.vector_norm(update)
            both = (size > 0) & (size_of_update > 0)
            lr = lr * torch.where(both, size / size_of_update, torch.ones_like(size))
        param.sub_(lr * update)


class FusedLars(Optimizer):
    """LARS around another optimizer: before its step the gradient of each tensor is scaled by the tensor's norm over
    the gradient's, the optimizer's weight decay included.

    Args:
        optimizer: What makes the step; its groups and its state are this one's.
        skip_mask: For each weight, in the order of the optimizer's, 1 where it is scaled and 0 where it is skipped: a
            skipped one is stepped as without LARS.
        eeta: The scale of all.
        eps: Added to the gradient's norm.
    """

    def __init__(self, optimizer: Optimizer, skip_mask: Sequence[Any], eeta: float = 0.001, eps: float = 1e-8) -> None:
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if len(skip_mask) != count:
            raise ValueError(f"`skip_mask` must have one entry for each of {count} weights; got {len(skip_mask)}")
        self.optim = optimizer
        self._is_scaled = [bool(one) for one in skip_mask]
        self._eeta = eeta
        self._eps = eps

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]  # an attribute of torch's
        return self.optim.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]  # an attribute of torch's
        return self.optim.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]  # an attribute of torch's
        return self.optim.defaults

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["optim"], name)  # hooks, for instance

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __repr__(self) -> str:
        return f"FusedLars({self.optim!r})"

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's."""
        return self.optim.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The optimizer's."""
        self.optim.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The optimizer's."""
        self.optim.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """A group whose weights are scaled."""
        before = sum(len(group["params"]) for group in self.param_groups)
        self.optim.add_param_group(param_group)
        count = sum(len(group["params"]) for group in self.param_groups)
        self._is_scaled += [True] * (count - before)

    @torch.no_grad()
    def step(self, closure: _Closure = None) -> Any:
        """Scale the gradients, and have the optimizer step."""
        loss = _loss(closure)
        scaled = iter(self._is_scaled)
        decays = [group.get("weight_decay", 0) for group in self.param_groups]
        with hmp.disable_casts():
            _made_dense(self)
            for group, decay in zip(self.param_groups, decays, strict=True):
                for param in group["params"]:
                    is_scaled = next(scaled)
                    if param.grad is not None:
                        self._scale(param, decay, is_scaled)
        try:
            for group in self.param_groups:
                if "weight_decay" in group:
                    group["weight_decay"] = 0  # it is in the gradients
            self.optim.step()
        finally:
            for group, decay in zip(self.param_groups, decays, strict=True):
                if "weight_decay" in group:
                    group["weight_decay"] = decay
        return loss

    def _scale(self, param: Tensor, decay: float, is_scaled: bool) -> None:
        grad = param.grad
        assert grad is not None
        size, size_of_grad = torch.linalg.vector_norm(param), torch.linalg.vector_norm(grad)
        if decay:
            grad.add_(param, alpha=decay)
        if is_scaled:
            ratio = self._eeta * size / (size_of_grad + decay * size + self._eps)
            grad.mul_(torch.where((size > 0) & (size_of_grad > 0), ratio, torch.ones_like(ratio)))


def _loss(closure: _Closure) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
