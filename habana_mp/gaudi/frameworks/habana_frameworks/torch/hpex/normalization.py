"""``habana_frameworks.torch.hpex.normalization``."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from habana_mp import hmp

__all__ = ["FusedClipNorm"]


class FusedClipNorm:
    """``FusedClipNorm(params, max_norm).clip_norm(params)``: :func:`torch.nn.utils.clip_grad_norm_`, in float32."""

    def __init__(self, parameters: Iterable[Tensor] | Tensor, max_norm: float) -> None:
        self.max_norm = float(max_norm)

    def clip_norm(self, parameters: Iterable[Tensor] | Tensor) -> Tensor:
        """Scale the gradients of these so that all together have this norm at most; the norm that they had."""
        params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        with hmp.disable_casts():
            for param in params:
                if param.grad is not None and param.grad.layout is not torch.strided:
                    param.grad = param.grad.to_dense()
            return torch.nn.utils.clip_grad_norm_(params, self.max_norm)
