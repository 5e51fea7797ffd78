"""Memory statistics of the real device. For a CPU they are those of this process, as Linux counts them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from habana_mp.gaudi import devices

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
]


def _of_process(field: str) -> int:
    """Returns the bytes in a line such as ``VmRSS:  1234 kB``."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"Linux does not tell {field} of this process")


def memory_allocated(device: Any = None) -> int:
    """Returns the bytes that tensors take now; on a CPU, the bytes that this process takes."""
    return int(devices().call_of_module("memory_allocated", lambda: _of_process("VmRSS")))


def max_memory_allocated(device: Any = None) -> int:
    """Returns the peak of :func:`memory_allocated` since the last reset."""
    return int(devices().call_of_module("max_memory_allocated", lambda: _of_process("VmHWM")))


def memory_reserved(device: Any = None) -> int:
    """Returns the bytes that are reserved now."""
    return int(devices().call_of_module("memory_reserved", lambda: _of_process("VmRSS")))


def max_memory_reserved(device: Any = None) -> int:
    """Returns the peak of :func:`memory_reserved` since the last reset."""
    return int(devices().call_of_module("max_memory_reserved", lambda: _of_process("VmHWM")))


#: Former names, which DeepSpeed asks for.
memory_cached, max_memory_cached = memory_reserved, max_memory_reserved


def _reset_peak() -> None:
    with suppress(OSError):  # sandboxes refuse it; the peak is then that of the whole process
        Path("/proc/self/clear_refs").write_text("5", "ascii")  # on Linux this resets the peak to the current value


def reset_peak_memory_stats(device: Any = None) -> None:
    """Resets the peak to the current value."""
    devices().call_of_module("reset_peak_memory_stats", _reset_peak)


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Resets what the real device has counted so far; for a CPU nothing is counted."""
    devices().call_of_module("reset_accumulated_memory_stats", lambda: None)


reset_max_memory_allocated = reset_peak_memory_stats


def _of_machine() -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Returns the free bytes, and the bytes in total."""
    free, total = devices().call_of_module("mem_get_info", _of_machine)
    return int(free), int(total)


def empty_cache() -> None:
    """Frees memory that torch keeps for later; on a CPU it keeps none."""
    devices().call_of_module("empty_cache", lambda: None)


def memory_stats(device: Any = None) -> dict[str, int]:
    """Returns the limit, the bytes in use, and their peak, under the names of HPU's statistics."""
    return {"Limit": mem_get_info()[1], "InUse": memory_allocated(), "MaxInUse": max_memory_allocated()}


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Returns the same as text."""
    return "\n".join(f"{name}: {size / 2**20:.1f} MB" for name, size in memory_stats().items())
