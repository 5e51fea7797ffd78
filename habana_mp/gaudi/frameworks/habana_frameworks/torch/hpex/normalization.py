"""``habana_frameworks.torch.hpex.normalization``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from habana_mp import hmp

from .optimizers import make_gradients_dense

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
        make_gradients_dense(params)
        return torch.nn.utils.clip_grad_norm_(params, self.max_norm)
