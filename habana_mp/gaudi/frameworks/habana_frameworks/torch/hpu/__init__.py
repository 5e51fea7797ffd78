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

from . import graphs, memory, metrics, random, streams  # noqa: F401  the modules of this package
from .graphs import *  # noqa: F403  each has a list of its names
from .memory import *  # noqa: F403
from .random import *  # noqa: F403
from .streams import *  # noqa: F403


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
    devices().call_of_module("init", lambda: None)


def is_initialized() -> bool:
    """True if torch has initialised the device."""
    return bool(devices().call_of_module("is_initialized", lambda: True))


def device_count() -> int:
    """Returns the number of devices of the type that ``"hpu"`` leads to; 1 for the CPU."""
    return int(devices().call_of_module("device_count", lambda: 1))


def current_device() -> int:
    """Returns the number of this process's device."""
    return devices().current_index()


def set_device(device: Any) -> None:
    """Makes this the current device. A CPU is the only device of its type."""
    index = device if isinstance(device, int) else torch.device(device).index
    devices().call_of_module("set_device", lambda: None, 0 if index is None else index)


def get_device_name(device: Any = None) -> str:
    """Returns the real device's name."""
    return str(devices().call_of_module("get_device_name", lambda: f"{devices().real.type} ({platform.machine()})"))


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Returns the real device's version; (0, 0) for a device that is not CUDA."""
    found: tuple[int, int] = torch.cuda.get_device_capability() if devices().real.type == "cuda" else (0, 0)
    return found


def get_device_properties(device: Any = None) -> Any:
    """Returns the real device's properties; for a CPU its name, its memory in bytes, and its number of processors."""
    total, count = memory.mem_get_info()[1], os.cpu_count() or 1
    of_cpu = {"name": get_device_name(), "major": 0, "minor": 0, "total_memory": total, "multi_processor_count": count}
    return devices().call_of_module("get_device_properties", lambda: types.SimpleNamespace(**of_cpu), current_device())


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """True if one device can read the memory of the other; on a CPU there is one memory."""
    return bool(devices().call_of_module("can_device_access_peer", lambda: True, device, peer_device))


def ipc_collect() -> None:
    """Frees memory that was shared with processes which ended; on a CPU they free it themselves."""
    devices().call_of_module("ipc_collect", lambda: None)


@contextmanager
def device(device: Any) -> Iterator[None]:
    """Returns a context in which this is the current device. A CPU is the only device of its type."""
    before = current_device()
    if device is not None:
        set_device(device)
    try:
        yield
    finally:
        if device is not None:
            set_device(before)


def is_bf16_supported() -> bool:
    """True if the device can compute in bfloat16."""
    return bool(devices().call_of_module("is_bf16_supported", lambda: True))


def enable_dynamic_shape() -> None:
    """Does nothing: shapes may change from step to step in any case, since nothing is compiled for them."""


disable_dynamic_shape = enable_dynamic_shape
