"""CUDA names for scripts that were written for CUDA: with ``gpu_migration`` they lead to the stand-in's device."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from habana_mp.gaudi.callers import is_script
from habana_mp.gaudi.devices import Devices
from habana_mp.gaudi.patches.changes import Changes
from habana_mp.gaudi.patches.devices import Method

#: Functions that the stand-in's ``torch.hpu`` has too.
_FUNCTIONS = (
    *("can_device_access_peer", "current_device", "current_stream", "default_stream", "device_count", "empty_cache"),
    *("get_device_capability", "get_device_name", "get_device_properties", "get_rng_state", "get_rng_state_all"),
    *("init", "initial_seed", "ipc_collect", "is_available", "is_bf16_supported", "is_initialized", "manual_seed"),
    *("make_graphed_callables", "manual_seed_all", "max_memory_allocated", "max_memory_cached", "max_memory_reserved"),
    *("mem_get_info", "memory_allocated", "memory_cached", "memory_reserved", "memory_summary"),
    *("reset_accumulated_memory_stats", "reset_max_memory_allocated", "reset_peak_memory_stats", "seed", "seed_all"),
    *("set_device", "set_rng_state", "set_rng_state_all", "set_stream", "stream", "synchronize"),
)
_CLASSES = ("Event", "Stream", "device")
#: The classes of tensors on CUDA, which have namesakes on the CPU.
_TENSORS = tuple(
    f"{kind}Tensor" for kind in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
)
#: Marks for NVIDIA's profiler.
_MARKS = ("mark", "range_end", "range_pop", "range_push", "range_start")


class _IsCuda:
    """``Tensor.is_cuda``, as the script's own code sees it."""

    def __init__(self, hpu: Devices) -> None:
        self._hpu = hpu
        self._torchs = inspect.getattr_static(torch.Tensor, "is_cuda")

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        if tensor is None:
            return self._torchs
        frame = inspect.currentframe()
        if frame is not None and is_script(frame.f_back):
            return tensor.device.type == self._hpu.real.type
        return self._torchs.__get__(tensor, owner)

    def __set__(self, tensor: Any, value: Any) -> None:
        self._torchs.__set__(tensor, value)


def change_cuda(hpu: Devices, torch_hpu: Any, changes: Changes) -> None:
    """``torch.cuda``, ``.cuda()`` and ``.is_cuda`` for the script's own code. torch and libraries still see no CUDA."""

    def for_script(module: Any, name: str, instead: Any) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            frame = inspect.currentframe()
            if frame is None or not is_script(frame.f_back):
                return original(*args, **kwargs)
            hpu.log_mapping(f"{module.__name__}.{name}", "cuda")
            return instead(*args, **kwargs)

        changes.exchange(module, name, function)

    def memory_stats(device: Any = None) -> dict[str, int]:
        """Returns the statistics under the names of HPU's and under those of CUDA's that scripts read."""
        memory = torch_hpu.memory
        found: dict[str, int] = memory.memory_stats(device)
        for name, kind in (("allocated", "allocated"), ("active", "allocated"), ("reserved", "reserved")):
            found[f"{name}_bytes.all.current"] = getattr(memory, f"memory_{kind}")()
            found[f"{name}_bytes.all.peak"] = getattr(memory, f"max_memory_{kind}")()
        return {**found, "num_alloc_retries": 0, "num_ooms": 0}

    torchs_dtype = torch.get_autocast_dtype

    @functools.wraps(torchs_dtype)
    def dtype(device_type: str) -> torch.dtype:
        """For all callers, since torch.compile cannot trace a search for the caller."""
        return torch.bfloat16 if hpu.means(device_type) else torchs_dtype(device_type)

    cuda = torch.cuda
    for module in (cuda, cuda.memory, cuda.random):
        for name in _FUNCTIONS:
            if callable(vars(module).get(name)):
                for_script(module, name, getattr(torch_hpu, name))
    for_script(cuda, "memory_stats", memory_stats)
    for_script(cuda.memory, "memory_stats", memory_stats)
    for_script(cuda, "graph_pool_handle", lambda: (0, 0))
    for_script(torch, "get_autocast_gpu_dtype", lambda: torch.bfloat16)
    for name in _MARKS:
        for_script(cuda.nvtx, name, _mark_nothing)
    for_script(cuda.nvtx, "range", _mark_no_range)
    changes.exchange(torch, "get_autocast_dtype", dtype)
    changes.exchange(cuda, "CUDAGraph", torch_hpu.HPUGraph)
    changes.exchange(cuda, "graph", lambda graph, pool=None, stream=None, **_: torch_hpu.graph(graph, stream))
    changes.exchange(cuda, "default_generators", torch_hpu.random.default_generators)
    if hpu.real.type == "cpu":
        for name in _TENSORS:
            changes.exchange(cuda, name, getattr(torch, name))
        changes.exchange(torch.Tensor, "type", Method("type", _type(torch.Tensor.type)))
    for name in _CLASSES:
        changes.exchange(cuda, name, getattr(torch_hpu, name))
    changes.exchange(torch.Tensor, "is_cuda", _IsCuda(hpu))
    for owner in (torch.Tensor, torch.nn.Module, torch.UntypedStorage):
        changes.exchange(owner, "cuda", vars(owner)["hpu"])


def _type(torchs: Any) -> Callable[..., Any]:
    @functools.wraps(torchs)
    def method(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        is_cudas = isinstance(dtype, str) and dtype.startswith("torch.cuda.")
        return torchs(self, dtype.replace("torch.cuda.", "torch.") if is_cudas else dtype, *args, **kwargs)

    return method


def _mark_nothing(*_: Any, **__: Any) -> int:
    """Stands for a mark in the timeline of NVIDIA's profiler, which sees no work of this device."""
    return 0


@contextlib.contextmanager
def _mark_no_range(*_: Any, **__: Any) -> Iterator[None]:
    yield
