"""CUDA names for scripts that were written for CUDA: with ``gpu_migration`` they lead to the stand-in's device."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from habana_mp.gaudi.patches.devices import Method
from habana_mp.gaudi.patches.names import Meaning
from habana_mp.patches.tools.exchanged_attributes import ExchangedAttributes
from habana_mp.patches.tools.patch import Patch, Settings

#: Functions that the stand-in's ``torch.hpu`` has too.
_FUNCTIONS = (
    *("can_device_access_peer", "current_device", "current_stream", "default_stream", "device_count", "empty_cache"),
    *("get_device_capability", "get_device_name", "get_device_properties", "get_rng_state", "get_rng_state_all"),
    *("init", "initial_seed", "ipc_collect", "is_available", "is_bf16_supported", "is_initialized", "manual_seed"),
    *("manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated"),
    *("memory_reserved", "memory_summary", "reset_accumulated_memory_stats"),
    *("reset_max_memory_allocated", "reset_peak_memory_stats", "seed", "seed_all", "set_device", "set_rng_state"),
    *("set_rng_state_all", "set_stream", "stream", "synchronize"),
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

    def __init__(self, meaning: Meaning) -> None:
        self._meaning = meaning
        self._torchs = inspect.getattr_static(torch.Tensor, "is_cuda")

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        if tensor is None:
            return self._torchs
        frame = inspect.currentframe()
        if frame is not None and self._meaning.is_script(frame.f_back):
            return tensor.device.type == self._meaning.real.type
        return self._torchs.__get__(tensor, owner)

    def __set__(self, tensor: Any, value: Any) -> None:
        self._torchs.__set__(tensor, value)


class CudaNames(Patch):
    """``torch.cuda``, ``.cuda()`` and ``.is_cuda`` for the script's own code. torch and libraries still see no CUDA."""

    def __init__(self, meaning: Meaning, hpu: Any) -> None:
        self._meaning = meaning
        self._hpu = hpu
        self._attributes = ExchangedAttributes()

    def install(self, settings: Settings) -> None:
        hpu: Any = self._hpu
        for name in _FUNCTIONS:
            self._exchange(torch.cuda, name, getattr(hpu, name))
        for module, instead in ((torch.cuda.memory, hpu.memory), (torch.cuda.random, hpu.random)):
            for name in instead.__all__:
                if name != "memory_stats" and callable(vars(module).get(name)):
                    self._exchange(module, name, getattr(instead, name))
        for module in (torch.cuda, torch.cuda.memory):
            self._exchange(module, "memory_stats", self._memory_stats)
        self._exchange(torch, "get_autocast_gpu_dtype", lambda: torch.bfloat16)
        self._attributes.exchange(torch, "get_autocast_dtype", self._dtype(torch.get_autocast_dtype))
        self._exchange(torch.cuda, "make_graphed_callables", hpu.make_graphed_callables)
        self._exchange(torch.cuda, "graph_pool_handle", lambda: (0, 0))
        self._attributes.exchange(torch.cuda, "CUDAGraph", hpu.HPUGraph)
        self._attributes.exchange(
            torch.cuda, "graph", lambda graph, pool=None, stream=None, **_: hpu.graph(graph, stream)
        )
        for name in _MARKS:
            self._exchange(torch.cuda.nvtx, name, _mark_nothing)
        self._exchange(torch.cuda.nvtx, "range", _mark_no_range)
        self._attributes.exchange(torch.cuda, "default_generators", hpu.random.default_generators)
        if self._meaning.real.type == "cpu":
            for name in _TENSORS:
                self._attributes.exchange(torch.cuda, name, getattr(torch, name))
            self._attributes.exchange(torch.Tensor, "type", Method("type", _type(torch.Tensor.type)))
        for name in _CLASSES:
            self._attributes.exchange(torch.cuda, name, getattr(hpu, name))
        self._attributes.exchange(torch.Tensor, "is_cuda", _IsCuda(self._meaning))
        for owner in (torch.Tensor, torch.nn.Module, torch.UntypedStorage):
            self._attributes.exchange(owner, "cuda", vars(owner)["hpu"])

    def uninstall(self) -> None:
        self._attributes.put_back()

    def _memory_stats(self, device: Any = None) -> dict[str, int]:
        """Returns the statistics under the names of HPU's and under those of CUDA's that scripts read."""
        memory = self._hpu.memory
        found: dict[str, int] = memory.memory_stats(device)
        for name, kind in (("allocated", "allocated"), ("active", "allocated"), ("reserved", "reserved")):
            found[f"{name}_bytes.all.current"] = getattr(memory, f"memory_{kind}")()
            found[f"{name}_bytes.all.peak"] = getattr(memory, f"max_memory_{kind}")()
        return {**found, "num_alloc_retries": 0, "num_ooms": 0}

    def _dtype(self, torchs: Any) -> Callable[[str], torch.dtype]:
        """Returns a function for all callers, since torch.compile cannot trace a search for the caller."""
        meaning = self._meaning

        @functools.wraps(torchs)
        def dtype(device_type: str) -> torch.dtype:
            return torch.bfloat16 if meaning.means(device_type) else torchs(device_type)

        return dtype

    def _exchange(self, module: Any, name: str, instead: Any) -> None:
        """Replaces a function for the script's own code."""
        original, meaning = getattr(module, name), self._meaning

        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            frame = inspect.currentframe()
            if frame is None or not meaning.is_script(frame.f_back):
                return original(*args, **kwargs)
            meaning.tell(f"{module.__name__}.{name}", "cuda")
            return instead(*args, **kwargs)

        self._attributes.exchange(module, name, function)


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
