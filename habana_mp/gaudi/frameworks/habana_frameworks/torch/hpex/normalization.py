"""``habana_frameworks.torch.hpex.normalization``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from habana_mp import hmp
from habana_mp.patches.torch.kernel_steps import make_gradients_dense
from habana_mp.patches.torch.optimizers import foreach, total_norm

__all__ = ["FusedClipNorm", "FusedRMSNorm"]


class FusedRMSNorm:
    """``FusedRMSNorm.apply(x, weight, eps)``: :func:`torch.nn.functional.rms_norm` over the last dimension."""

    @staticmethod
    def apply(x: Tensor, weight: Tensor, eps: float, *_: Any, **__: Any) -> Tensor:
        """Returns the result in the precision of ``x``. It is computed in float32, or in float64 for such an input. The
        options of Gaudi's kernel change nothing."""
        exact = torch.promote_types(x.dtype, torch.float32)
        with hmp.disable_casts():
            normalized = torch.nn.functional.rms_norm(x.to(exact), weight.shape, weight.to(exact), eps)
            return normalized.to(x.dtype)


class FusedClipNorm:
    """``FusedClipNorm(params, max_norm).clip_norm(params)``: :func:`torch.nn.utils.clip_grad_norm_`, in float32."""

    def __init__(self, parameters: Iterable[Tensor] | Tensor, max_norm: float) -> None:
        self.max_norm = float(max_norm)

    @torch.no_grad()
    def clip_norm(self, parameters: Iterable[Tensor] | Tensor) -> Tensor:
        """Scales the gradients so that together they have at most this norm. Returns the norm before."""
        params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        with hmp.disable_casts():
            make_gradients_dense(params)
            grads = [param.grad for param in params if param.grad is not None]
            if not grads or any(type(grad) is not Tensor for grad in grads):
                return torch.nn.utils.clip_grad_norm_(params, self.max_norm)  # it supports sharded ones, for instance
            norm = total_norm(grads)
            scale = torch.clamp(self.max_norm / (norm + 1e-6), max=1.0)
            if any(grad.device.type != "cpu" for grad in grads):
                foreach.mul_(grads, [scale.to(grad.device) for grad in grads])
            elif (factor := float(scale)) != 1:  # reading it waits for no device
                foreach.mul_(grads[::-1], factor)  # the last gradient was read last: it is in the caches
            return norm
