"""The functions of ``torch.pretended``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

#: The extension; ``load()`` sets it.
core: Any = None

#: Checkpointing keeps the state of random numbers of devices that have this.
_initialized = True

_Device = torch.device | str | int | None


def _index(given: _Device) -> int:
    if isinstance(given, int):
        return given
    index = None if given is None else torch.device(given).index
    return current_device() if index is None else index


# ---- devices ---------------------------------------------------------------------------------------------------------


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def _lazy_init() -> None:
    pass


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    return int(core.device_count())


def current_device() -> int:
    return int(core.current_device())


def set_device(device: _Device) -> None:
    core.set_device(_index(device))


def get_device_name(device: _Device = None) -> str:
    return f"pretended accelerator {_index(device)}"


class device:  # noqa: N801
    """Makes a device the current one while it is entered."""

    def __init__(self, device: _Device) -> None:
        self._index = _index(device)

    def __enter__(self) -> None:
        self._before = current_device()
        core.set_device(self._index)

    def __exit__(self, *_: object) -> None:
        core.set_device(self._before)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


# ---- streams ---------------------------------------------------------------------------------------------------------


class Stream(torch.Stream):
    """A stream of the device; the current device is the default."""

    def __new__(cls, device: _Device = None, priority: int = 0, **given: Any) -> Stream:
        if "stream_id" in given:
            return super().__new__(cls, **given)
        return super().__new__(cls, device=torch.device("pretended", _index(device)), priority=priority)


def Event(enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:  # noqa: N802
    """Returns an event of the device. torch.Event takes no objects of its subclasses."""
    return torch.Event("pretended", enable_timing=enable_timing)


def current_stream(device: _Device = None) -> torch.Stream:
    return torch.accelerator.current_stream(_index(device))


def default_stream(device: _Device = None) -> torch.Stream:
    return Stream(stream_id=0, device_index=_index(device), device_type=_TYPE)


_TYPE = 20  # c10::DeviceType::PrivateUse1


def set_stream(stream: torch.Stream) -> None:
    before = current_device()
    torch.accelerator.set_stream(stream)
    core.set_device(before)


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Makes a stream and its device the current ones while it is entered."""
    if stream is None:
        yield
        return
    device, before = current_device(), current_stream(stream.device)
    set_stream(stream)
    core.set_device(stream.device.index)
    try:
        yield
    finally:
        set_stream(before)
        core.set_device(device)


def synchronize(device: _Device = None) -> None:
    torch.accelerator.synchronize(_index(device))


def synchronizations() -> int:
    """Returns how often the host has waited for a device."""
    return int(core.synchronizations())


# ---- memory ----------------------------------------------------------------------------------------------------------


def memory_allocated(device: _Device = None) -> int:
    return torch.accelerator.memory_allocated(_index(device))


def memory_reserved(device: _Device = None) -> int:
    return torch.accelerator.memory_reserved(_index(device))


def mem_get_info(device: _Device = None) -> tuple[int, int]:
    return torch.accelerator.get_memory_info(_index(device))


def empty_cache() -> None:
    torch.accelerator.empty_cache()


def set_memory_limit(size: int, device: _Device = None) -> None:
    """Limits the memory of a device to this many bytes."""
    core.set_memory_limit(_index(device), size)


# ---- random numbers --------------------------------------------------------------------------------------------------


def default_generator(device: _Device = None) -> torch.Generator:
    found: torch.Generator = core.default_generator(_index(device))
    return found


def manual_seed(seed: int) -> None:
    default_generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        default_generator(index).manual_seed(int(seed))


def get_rng_state(device: _Device = None) -> Tensor:
    return default_generator(device).get_state()


def set_rng_state(new_state: Tensor, device: _Device = None) -> None:
    default_generator(device).set_state(new_state)


def get_rng_state_all() -> list[Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: list[Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# ---- for tests -------------------------------------------------------------------------------------------------------


def empty_kernels(enabled: bool) -> None:
    """Makes products, sums, softmax, relu, layer_norm and copies return results without numbers, in little time."""
    core.empty_kernels(enabled)


def host_alias(tensor: Tensor) -> Tensor:
    """Returns a CPU tensor over the memory of a tensor of the device, without any check."""
    made: Tensor = core.host_alias(tensor)
    return made


class Graph:
    """The kernels that ran in a capture. ``replay`` runs them again over the same memory."""

    def __init__(self) -> None:
        self._graph = core.Graph()

    def capture_begin(self) -> None:
        self._graph.begin()

    def capture_end(self) -> None:
        self._graph.end()

    def replay(self) -> None:
        self._graph.replay()


@contextlib.contextmanager
def graph(graph: Graph, stream: torch.Stream | None = None) -> Iterator[None]:
    """Captures into a graph, on a stream of its own."""
    synchronize()
    with globals()["stream"](stream or Stream()):
        current = current_stream()
        graph.capture_begin()
        try:
            yield
        finally:
            graph.capture_end()
            core.wait_for_stream(default_stream(), current)


def is_current_stream_capturing() -> bool:
    return bool(core.is_capturing())
