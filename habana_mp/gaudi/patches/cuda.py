"""CUDA names for scripts that were written for CUDA: with ``gpu_migration`` they lead to the stand-in's device."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from habana_mp.gaudi.patches.names import Meaning
from habana_mp.patches.tools.exchanged_attributes import ExchangedAttributes
from habana_mp.patches.tools.patch import Patch, Settings

#: Functions that the stand-in's ``torch.hpu`` has too.
_FUNCTIONS = (
    *("can_device_access_peer", "current_device", "current_stream", "default_stream", "device_count", "empty_cache"),
    *("get_device_capability", "get_device_name", "get_device_properties", "get_rng_state", "get_rng_state_all"),
    *("init", "initial_seed", "ipc_collect", "is_available", "is_bf16_supported", "is_initialized", "manual_seed"),
    *("manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated"),
    *("memory_reserved", "memory_stats", "memory_summary", "reset_accumulated_memory_stats"),
    *("reset_max_memory_allocated", "reset_peak_memory_stats", "seed", "seed_all", "set_device", "set_rng_state"),
    *("set_rng_state_all", "set_stream", "stream", "synchronize"),
)
_CLASSES = ("Event", "Stream", "device")


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
        for name in _FUNCTIONS:
            self._attributes.exchange(torch.cuda, name, self._for_script(getattr(torch.cuda, name), name))
        for name in _CLASSES:
            self._attributes.exchange(torch.cuda, name, getattr(self._hpu, name))
        self._attributes.exchange(torch.Tensor, "is_cuda", _IsCuda(self._meaning))
        for owner in (torch.Tensor, torch.nn.Module):
            self._attributes.exchange(owner, "cuda", vars(owner)["hpu"])

    def uninstall(self) -> None:
        self._attributes.put_back()

    def _for_script(self, original: Any, name: str) -> Any:
        meaning, instead = self._meaning, getattr(self._hpu, name)

        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            frame = inspect.currentframe()
            if frame is None or not meaning.is_script(frame.f_back):
                return original(*args, **kwargs)
            meaning.tell(f"torch.cuda.{name}", "cuda")
            return instead(*args, **kwargs)

        return function
