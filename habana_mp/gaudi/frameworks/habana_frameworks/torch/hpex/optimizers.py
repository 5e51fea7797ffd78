"""``habana_frameworks.torch.hpex.optimizers``: the optimizers that Gaudi fuses, under their names.

On the CPU habana_mp's kernels make their steps (of :class:`FusedLars` only around :class:`habana_mp.optim.SGD`).
Optimizers that torch has too derive from torch's classes (:mod:`habana_mp.optim`). The entries of state dictionaries
have torch's names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from habana_mp import hmp, optim
from habana_mp.patches.torch.kernel_steps import (
    Stepping,
    loss_of,
    make_gradients_dense,
    step_by_kernels,
    writes_cached_casts,
)
from habana_mp.patches.torch.optimizers import INSIDES_ARE_KNOWN, foreach, total_norm

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
    """Makes sparse gradients dense: these optimizers change every value of a weight in every step."""
    for group in optimizer.param_groups:
        make_gradients_dense(group["params"])


@writes_cached_casts
class FusedAdamW(optim.AdamW):
    """:class:`torch.optim.AdamW` with Gaudi's arguments and defaults, among them the option ``bias_correction``."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> FusedAdamW:
        # Torch's step always corrects the averages, so a subclass makes steps without correction.
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


@writes_cached_casts
class _UncorrectedAdamW(FusedAdamW):
    """AdamW without bias correction: it uses the averages as they are, although they begin at zero."""

    @torch.no_grad()
    def step(self, closure: _Closure = None) -> Any:
        """Performs a single optimization step."""
        loss = loss_of(closure)
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        numbers: dict[str, Any] = _numbers_of(group)

        def attempt(columns: Sequence[list[Any]]) -> Stepping:
            params, grads, averages, squares, steps = columns
            stepping = Stepping(params, grads, [averages, squares], steps)
            self._by_torch(*(stepping.left_out(column) for column in columns), **numbers)
            stepping.run("adam", decoupled=True, maximize=False, corrects=False, grad_scale=None, **numbers)
            return stepping

        step_by_kernels(_with_averages(self, group), attempt, lambda left: self._by_torch(*left, **numbers))

    @staticmethod
    def _by_torch(
        params: list[Tensor],
        grads: list[Tensor],
        averages: list[Tensor],
        squares: list[Tensor],
        steps: list[Tensor],
        *,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
    ) -> None:
        if not params:
            return
        foreach.add_(steps, 1)
        foreach.lerp_(averages, grads, 1 - beta1)
        foreach.mul_(squares, beta2)
        foreach.addcmul_(squares, grads, grads, value=1 - beta2)
        roots = foreach.sqrt(squares)
        foreach.add_(roots, eps)
        foreach.mul_(params, 1 - lr * weight_decay)
        foreach.addcdiv_(params, averages, roots, value=-lr)


def _with_averages(
    optimizer: Optimizer, group: dict[str, Any], dtype: torch.dtype | None = None
) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
    """Returns the weights that have a gradient, and for each of them its gradient, the averages of the gradient and of
    its square, and the count of steps.

    New averages have this dtype, or that of the weight if it is None.
    """
    params = [param for param in group["params"] if param.grad is not None]
    for param in params:
        state = optimizer.state[param]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(param, dtype=dtype)
            state["exp_avg_sq"] = torch.zeros_like(param, dtype=dtype)
    states = [optimizer.state[param] for param in params]
    averages, squares, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
    return params, [param.grad for param in params], averages, squares, steps


def _numbers_of(group: dict[str, Any]) -> dict[str, float]:
    """Returns the group's hyperparameters as floats, by the names of the kernels' arguments."""
    numbers = {name: float(group[name]) for name in ("lr", "eps", "weight_decay")}
    numbers["beta1"], numbers["beta2"] = (float(one) for one in group["betas"])
    return numbers


@writes_cached_casts
class FusedSGD(optim.SGD):
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
        if momentum or weight_decay:
            self.register_step_pre_hook(_made_dense)


@writes_cached_casts
class FusedResourceApplyMomentum(FusedSGD):
    """SGD with momentum and without dampening, like TensorFlow's operator of this name."""

    def __init__(
        self, params: _Params, lr: float | Tensor = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr, momentum, weight_decay=weight_decay)


@writes_cached_casts
class FusedAdagrad(optim.Adagrad):
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
        if weight_decay:
            self.register_step_pre_hook(_made_dense)  # torch.optim.Adagrad refuses weight decay with sparse gradients


@writes_cached_casts
class FusedLamb(Optimizer):
    """LAMB: Adam's update of each tensor is multiplied by the norm of the tensor divided by the norm of the update.

    Args:
        params: Weights, or groups of them.
        lr: The learning rate.
        bias_correction: True to correct the averages, which begin at zero.
        betas: The decay rates of the averages of the gradient and of its square.
        eps: Added to the square root of the second average.
        weight_decay: The factor of the weight decay.
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
        loss = loss_of(closure)
        _made_dense(self)
        norm = None
        if any(group["max_grad_norm"] for group in self.param_groups):
            grads = [one.grad for group in self.param_groups for one in group["params"] if one.grad is not None]
            norm = total_norm(grads) if grads else None
        for group in self.param_groups:
            self._step(group, norm)
        return loss

    def _step(self, group: dict[str, Any], norm: Tensor | None) -> None:
        columns = _with_averages(self, group, group["dtype"])
        options = {
            "decoupled": group["adam_w_mode"],
            "corrects": group["bias_correction"],
            "averages_gradient": group["grad_averaging"],
            "adapts": bool(group["weight_decay"] or group["use_nvlamb"]),
            **_numbers_of(group),
        }
        scale = None
        if group["max_grad_norm"] and norm is not None:
            scale = torch.clamp(group["max_grad_norm"] / norm, max=1.0)

        def attempt(columns: Sequence[list[Any]]) -> Stepping:
            params, grads, averages, squares, steps = columns
            stepping = Stepping(params, grads, [averages, squares], steps)
            left_out = [stepping.left_out(column) for column in columns]
            if left_out[0]:
                self._by_torch(*left_out, scale=scale, **options)
            if len(left_out[0]) < len(params):
                stepping.run("lamb", grad_scale=1.0 if scale is None else float(scale), **options)
            return stepping

        step_by_kernels(columns, attempt, lambda left: self._by_torch(*left, scale=scale, **options))

    @staticmethod
    def _by_torch(
        params: list[Tensor],
        grads: list[Tensor],
        averages: list[Tensor],
        squares: list[Tensor],
        steps: list[Tensor],
        *,
        scale: Tensor | None,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        decoupled: bool,
        corrects: bool,
        averages_gradient: bool,
        adapts: bool,
    ) -> None:
        if scale is not None:
            grads = foreach.mul(grads, [scale.to(grad.device) for grad in grads])
        if weight_decay and not decoupled:
            grads = foreach.add(grads, params, alpha=weight_decay)
        foreach.add_(steps, 1)
        foreach.mul_(averages, beta1)
        foreach.add_(averages, grads, alpha=1 - beta1 if averages_gradient else 1.0)
        foreach.mul_(squares, beta2)
        foreach.addcmul_(squares, grads, grads, value=1 - beta2)
        # Computed in float32 if the averages have a lower precision.
        corrections = [[1 - beta ** float(step) if corrects else 1.0 for step in steps] for beta in (beta1, beta2)]
        updates = foreach.div([_at_least_float32(one) for one in averages], corrections[0])
        roots = foreach.div([_at_least_float32(one) for one in squares], corrections[1])
        foreach.sqrt_(roots)
        foreach.add_(roots, eps)
        foreach.div_(updates, roots)
        if weight_decay and decoupled:
            foreach.add_(updates, params, alpha=weight_decay)
        if adapts:
            norms = zip(foreach.norm(params), foreach.norm(updates), strict=True)
            ratios = [torch.where((old > 0) & (new > 0), old / new, torch.ones_like(old)) for old, new in norms]
            foreach.mul_(updates, ratios)
        foreach.add_(params, updates, alpha=-lr)


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class FusedLars(Optimizer):
    """LARS around another optimizer. Before its step, the weight decay is added to each gradient, and the gradient is
    multiplied by ``eeta * |weight| / (|gradient| + weight_decay * |weight| + eps)``, with the norms before this.

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
        """Returns the state of the inner optimizer."""
        return self.optim.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of the inner optimizer."""
        self.optim.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Resets the gradients, as the inner optimizer does."""
        self.optim.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group. The gradients of its weights are scaled."""
        before = sum(len(group["params"]) for group in self.param_groups)
        self.optim.add_param_group(param_group)
        count = sum(len(group["params"]) for group in self.param_groups)
        self._is_scaled += [True] * (count - before)

    #: GradScaler must unscale the gradients itself: their norms are needed before the inner optimizer's step.
    _step_supports_amp_scaling = False

    @torch.no_grad()
    def step(self, closure: _Closure = None) -> Any:
        """Scales the gradients and makes the inner optimizer's step. Returns the loss of the closure."""
        loss = loss_of(closure)
        params = [param for group in self.param_groups for param in group["params"]]
        lars = optim.Lars(dict(zip(params, self._is_scaled, strict=True)), self._eeta, self._eps)
        with hmp.disable_casts():
            _made_dense(self)
            if isinstance(self.optim, optim.SGD) and INSIDES_ARE_KNOWN:
                self._step_with(self.optim, lars)
            else:
                self._scale_and_step(lars)
        return loss

    @staticmethod
    def _step_with(optimizer: optim.SGD, lars: optim.Lars) -> None:
        """Makes the step of an optimizer whose kernels scale during the step, and leave the gradients unchanged."""
        optimizer._lars = lars
        try:
            optimizer.step()
        finally:
            optimizer._lars = None

    def _scale_and_step(self, lars: optim.Lars) -> None:
        """Scales the gradients in place, with the weight decay added, then makes the step without weight decay."""
        decays = [group.get("weight_decay", 0) for group in self.param_groups]
        for group, decay in zip(self.param_groups, decays, strict=True):
            params = [param for param in group["params"] if param.grad is not None]
            lars.scale_(params, [param.grad for param in params], decay, maximize=group.get("maximize", False))
        try:
            for group in self.param_groups:
                if "weight_decay" in group:
                    group["weight_decay"] = 0  # the gradients contain it already
            self.optim.step()
        finally:
            for group, decay in zip(self.param_groups, decays, strict=True):
                if "weight_decay" in group:
                    group["weight_decay"] = decay
