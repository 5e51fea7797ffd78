"""Reuse of memory: large casts get blocks from a pool, and the C library keeps freed memory.

On a CPU, torch uses the C library's allocator. It requests each large block from the kernel, and returns the end of the
heap when much of it is free: in every training step. The kernel clears the memory that it provides, page by page.
"""

from __future__ import annotations

import ctypes
import os

from habana_mp import _core
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.patches.tools.tracked_casts import RecordedCast

#: From this size on, the C library requests each block from the kernel, whatever thresholds it has learnt.
_LARGE = 32 << 20

#: The most bytes that wait for reuse in blocks for casts, and also at the end of the heap.
_MOST_WAITING = 512 << 20

#: Parameters of ``mallopt``, and the value that the C library itself sets once a block of 32 MB was freed.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LEARNT_TRIM_THRESHOLD = 2 * _LARGE

#: If one of these is set, the heap is left to the user.
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")


class Memory(Patch):
    """Keeps memory for reuse."""

    def __init__(self) -> None:
        self._heap_is_kept = False

    def install(self, settings: Settings) -> None:
        _core.set_tracked_cast(RecordedCast.apply)
        if not settings.options.reuse_memory:
            self._give_back()
            return
        _core.keep_blocks(_LARGE, _MOST_WAITING)
        if not self._heap_is_kept and not _is_set_by_user():
            self._heap_is_kept = _set_heap(_MOST_WAITING)

    def uninstall(self) -> None:
        self._give_back()
        _core.set_tracked_cast(None)

    def _give_back(self) -> None:
        _core.keep_blocks(None, 0)
        if self._heap_is_kept:
            _set_heap(_LEARNT_TRIM_THRESHOLD)
            self._heap_is_kept = False


def _is_set_by_user() -> bool:
    return any(name in os.environ for name in _SETTINGS) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")


def _set_heap(most_waiting: int) -> bool:
    """Sets how much may be free at the end of the heap before the C library returns it. False if that fails."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    # Setting one of them stops the C library from adjusting the other.
    return bool(mallopt and mallopt(_M_MMAP_THRESHOLD, _LARGE) and mallopt(_M_TRIM_THRESHOLD, most_waiting))
