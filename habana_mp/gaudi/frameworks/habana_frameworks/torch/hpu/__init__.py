"""``habana_frameworks.torch.hpu``, also ``torch.hpu``: the device's state."""

from __future__ import annotations

import os
import platform
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from habana_mp.gaudi import devices
from habana_mp.scopes import regions

from . import graphs, memory, metrics, random, streams
from .graphs import (
    HPUGraph,
    ModuleCacher,
    graph,
    make_graphed_callables,
    wrap_in_hpu_graph,
    wrap_in_hpu_graph_func,
)
from .memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
)
from .random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .streams import Event, Stream, StreamContext, current_stream, default_stream, set_stream, stream, synchronize

__all__ = [
    "Event",
    "HPUGraph",
    "ModuleCacher",
    "Stream",
    "StreamContext",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "disable_dynamic_shape",
    "empty_cache",
    "enable_const_section_serialization",
    "enable_dynamic_shape",
    "get_autocast_hpu_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "graph",
    "graphs",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_autocast_hpu_enabled",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "metrics",
    "random",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "sdp_kernel",
    "seed",
    "seed_all",
    "setDeterministic",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "streams",
    "synchronize",
    "wrap_in_hpu_graph",
    "wrap_in_hpu_graph_func",
]


@contextmanager
def sdp_kernel(enable_recompute: bool = False, **_: Any) -> Iterator[None]:
    """Returns a context without effect. On Gaudi it chooses how the fused attention is computed."""
    yield


def is_autocast_hpu_enabled() -> bool:
    """True in a region of ``torch.autocast("hpu")`` or of ``hmp.autocast`` that casts."""
    return regions.is_autocast_enabled(devices().real.type)


def get_autocast_hpu_dtype() -> torch.dtype:
    """Returns the lower precision of such a region."""
    return regions.get_autocast_dtype(devices().real.type)


def setDeterministic(deterministic: bool) -> None:  # noqa: N802  the name that scripts use
    """Calls :func:`torch.use_deterministic_algorithms`; an operation without such an algorithm warns."""
    torch.use_deterministic_algorithms(bool(deterministic), warn_only=True)


def enable_const_section_serialization(*_: Any, **__: Any) -> None:
    """Accepts the call and changes nothing, since no compiled graphs are written to files."""


def is_available() -> bool:
    """True: ``"hpu"`` can be used."""
    return True


def init() -> None:
    """Lets torch initialise the device now, if it can."""
    start = getattr(devices().module, "init", None)
    if start is not None:
        start()


def is_initialized() -> bool:
    """True if torch has initialised the device."""
    asked = getattr(devices().module, "is_initialized", None)
    return True if asked is None else bool(asked())


def device_count() -> int:
    """Returns the number of devices of the type that ``"hpu"`` leads to; 1 for the CPU."""
    return 1 if devices().real.type == "cpu" else int(devices().module.device_count())


def current_device() -> int:
    """Returns the number of this process's device."""
    return devices().current_index()


def set_device(device: Any) -> None:
    """Makes this the current device. A CPU is the only device of its type."""
    here = devices()
    if here.real.type != "cpu":
        index = device if isinstance(device, int) else torch.device(device).index
        here.module.set_device(0 if index is None else index)


def get_device_name(device: Any = None) -> str:
    """Returns the real device's name."""
    here = devices()
    asked = getattr(here.module, "get_device_name", None)
    return f"{here.real.type} ({platform.machine()})" if asked is None else str(asked())


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Returns the real device's version; (0, 0) for a CPU, which has none."""
    asked = getattr(devices().module, "get_device_capability", None)
    found = asked() if asked is not None and devices().real.type == "cuda" else (0, 0)
    return int(found[0]), int(found[1])


def get_device_properties(device: Any = None) -> Any:
    """Returns the real device's properties; for a CPU its name, its memory in bytes, and its number of processors."""
    if devices().real.type != "cpu":
        return devices().module.get_device_properties(devices().current_index())
    return types.SimpleNamespace(
        name=get_device_name(),
        major=0,
        minor=0,
        total_memory=mem_get_info()[1],
        multi_processor_count=os.cpu_count() or 1,
    )


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """True if one device can read the memory of the other; on a CPU there is one memory."""
    asked = getattr(devices().module, "can_device_access_peer", None)
    return True if asked is None else bool(asked(device, peer_device))


def ipc_collect() -> None:
    """Frees memory that was shared with processes which ended; on a CPU they free it themselves."""
    collect = getattr(devices().module, "ipc_collect", None)
    if collect is not None:
        collect()


class device:  # noqa: N801  the name that scripts use
    """A context in which this is the current device. A CPU is the only device of its type."""

    def __init__(self, device: Any) -> None:
        self._given = device
        self._before = 0

    def __enter__(self) -> None:
        self._before = current_device()
        if self._given is not None:
            set_device(self._given)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: types.TracebackType | None
    ) -> None:
        if self._given is not None:
            set_device(self._before)


def is_bf16_supported() -> bool:
    """True if the device can compute in bfloat16."""
    asked = getattr(devices().module, "is_bf16_supported", None)
    return True if asked is None else bool(asked())


def enable_dynamic_shape() -> None:
    """Does nothing: shapes may change from step to step in any case, since nothing is compiled for them."""


def disable_dynamic_shape() -> None:
    """Does nothing: shapes may change from step to step in any case, since nothing is compiled for them."""
