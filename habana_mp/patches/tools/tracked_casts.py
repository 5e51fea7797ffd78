"""Casts that autograd tracks, as nodes of its graph."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import Function

from habana_mp import _core


class _Cast(Function):
    """A cast in autograd's graph. The cast of its gradient gets a block from the pool if it is large, and keeps the
    gradient's layout: the gradient of a sparse tensor may be dense."""

    @staticmethod
    def note(ctx: Any, tensor: torch.Tensor) -> None:
        ctx.set_materialize_grads(False)
        ctx.dtype = tensor.dtype

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        return None if gradient is None else _cast(gradient, ctx.dtype), None


class RecordedCast(_Cast):
    """A cast that gets such a block itself, or whose tensor or gradient may be sparse. Graphs show the class's name."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        _Cast.note(ctx, tensor)
        return _cast(tensor, dtype)


class CachedCast(_Cast):
    """The cached cast of a weight as a part of the graph, without a copy."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, cast: torch.Tensor) -> torch.Tensor:
        _Cast.note(ctx, weight)
        part: torch.Tensor = torch.ops.aten._unsafe_view(cast, cast.shape)
        return part


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns ``tensor.to(dtype)``, in a block from the pool if possible."""
    # torch casts if the gradient is differentiated or traced.
    made = None if torch.compiler.is_compiling() else _core.cast_in_block(tensor, dtype)
    return tensor.to(dtype) if made is None else made
