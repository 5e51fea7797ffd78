"""Memory that is used again: large casts get blocks that wait for them, and the C library keeps what is freed.

torch's allocator on a CPU is the C library's. It asks the kernel for a large block each time, and gives the heap's end
back to it when much of that is free: in every step of a training. The kernel clears what it gives out, page by page.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch
from torch.autograd.function import Function

from habana_mp import _core

#: From this size on the C library asks the kernel for each block, whatever it learns of a program.
_LARGE = 32 << 20

#: So much may wait, in blocks for casts, and as much at the heap's end.
_MOST_WAITING = 512 << 20

#: Parameters of the C library's ``mallopt``, and what they come to by themselves once a block of 32 MB was freed.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LEARNT_TRIM_THRESHOLD = 2 * _LARGE

#: Who sets one of these has an opinion of his own.
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")


class Memory:
    """What is kept for later, switched on and off with a configuration."""

    def __init__(self) -> None:
        self._heap_is_kept = False

    def install(self, *, on: bool) -> None:
        _core.set_recorded_cast(RecordedCast.apply)
        if not on:
            self._give_back()
            return
        _core.keep_blocks(_LARGE, _MOST_WAITING)
        if not self._heap_is_kept and not _is_set_by_user():
            self._heap_is_kept = _set_heap(_MOST_WAITING)

    def uninstall(self) -> None:
        self._give_back()
        _core.set_recorded_cast(None)

    def _give_back(self) -> None:
        _core.keep_blocks(None, 0)
        if self._heap_is_kept:
            _set_heap(_LEARNT_TRIM_THRESHOLD)
            self._heap_is_kept = False


def _is_set_by_user() -> bool:
    return any(name in os.environ for name in _SETTINGS) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")


def _set_heap(most_waiting: int) -> bool:
    """How much may be free at the heap's end before the C library gives it back. False where it cannot be told."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Told one of them, it learns the other no more.
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE) and mallopt(_M_TRIM_THRESHOLD, most_waiting))


class _Cast(Function):
    """A cast in autograd's graph. The cast of its gradient gets a block that waits for it, where that is large, and
    keeps the gradient's layout: that of a sparse tensor may be dense."""

    @staticmethod
    def note(ctx: Any, tensor: torch.Tensor) -> None:
        ctx.set_materialize_grads(False)
        ctx.dtype = tensor.dtype

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        return None if gradient is None else _cast(gradient, ctx.dtype), None


class RecordedCast(_Cast):
    """One that gets such a block itself, or has to do with a sparse tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        _Cast.note(ctx, tensor)
        return _cast(tensor, dtype)


class KeptCast(_Cast):
    """The kept cast of a weight as a part of the graph: without a copy."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, cast: torch.Tensor) -> torch.Tensor:
        _Cast.note(ctx, weight)
        part: torch.Tensor = torch.ops.aten._unsafe_view(cast, cast.shape)
        return part


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As ``tensor.to(dtype)``."""
    # Where somebody differentiates the gradient, or traces it, torch casts.
    made = None if torch.compiler.is_compiling() else _core.cast_in_block(tensor, dtype)
    return tensor.to(dtype) if made is None else made
