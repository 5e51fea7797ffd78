"""Changes of a weight through an alias of its memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
import tvm_ffi
from torch import nn
from torch.utils import dlpack

from helpers.processes import in_threads
from helpers.weight_changes.basics import (
    COLUMN,
    DATA,
    GET_DATA,
    GRADLESS_DATA,
    NUMPY,
    ROW,
    SIZE,
    STORAGE,
    Change,
    floats_at,
    layer,
    noise,
    write,
)
from helpers.weight_changes.in_place import ONE_ELEMENT


def _rebuilt(w: torch.Tensor) -> torch.Tensor:
    return torch.empty(0).set_(w.untyped_storage(), 0, (SIZE, SIZE), (SIZE, 1))


ALIASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "detach": lambda w: w.detach(),
    "data": lambda w: w.data,
    "view of data": lambda w: w.data.view(-1),
    "data by a descriptor taken before": lambda w: DATA.__get__(w),
    "data by a method taken before": lambda w: GET_DATA(w),
    "data of the base class": lambda w: GRADLESS_DATA.__get__(w),
    "view": lambda w: w.view(-1),
    "transpose": lambda w: w.transpose(0, 1),
    "as_strided": lambda w: w.as_strided((SIZE, SIZE), (SIZE, 1)),
    "alias": lambda w: torch.ops.aten.alias.default(w),
    "aten.detach": lambda w: torch.ops.aten.detach.default(w),
    "bits": lambda w: w.detach().view(torch.int32).view(torch.float32),
    "another Parameter": lambda w: nn.Parameter(w),
    "another Parameter of data": lambda w: nn.Parameter(w.data),
    "as_subclass": lambda w: w.detach().as_subclass(nn.Parameter),
    "tensor of its storage": _rebuilt,
    "tensor of a storage by a method taken before": lambda w: torch.empty(0).set_(STORAGE(w), 0, (SIZE, SIZE)),
    "tensor of its typed storage": lambda w: torch.empty(0).set_(w._typed_storage(), 0, (SIZE, SIZE)),
    "numpy": lambda w: w.detach().numpy(),
    "numpy by force": lambda w: w.numpy(force=True),
    "numpy by a method taken before": lambda w: NUMPY(w.detach()),
    "memoryview": lambda w: np.asarray(memoryview(w.detach().numpy())),
    "ctypes buffer": lambda w: np.frombuffer((ctypes.c_float * SIZE**2).from_buffer(w.detach().numpy()), np.float32),
    "from_dlpack": lambda w: torch.from_dlpack(w.detach()),
    "utils.dlpack": lambda w: dlpack.from_dlpack(dlpack.to_dlpack(w.detach())),
    "__dlpack__": lambda w: torch.from_dlpack(w.detach().__dlpack__()),
    "DLPack's exchange of C": lambda w: torch.from_dlpack(tvm_ffi.from_dlpack(w.detach())),
    "data_ptr": lambda w: floats_at(w.data_ptr()),
    "data_ptr of a detached one": lambda w: floats_at(w.detach().data_ptr()),
    "data_ptr of the storage": lambda w: floats_at(w.untyped_storage().data_ptr()),
    "address of numpy": lambda w: floats_at(w.detach().numpy().ctypes.data),
    "address in a DLPack tensor": lambda w: floats_at(np.from_dlpack(w.detach()).ctypes.data),
}
# tvm_ffi has C functions for some releases of torch and Python. Without them it exports by `__dlpack__`, which refuses.
with suppress(RuntimeError):
    tvm_ffi.from_dlpack(nn.Parameter(torch.ones(1)))
    ALIASES["DLPack's exchange of C, of the weight"] = lambda w: torch.from_dlpack(tvm_ffi.from_dlpack(w))


def through(take: Callable[[torch.Tensor], Any], of: nn.Linear) -> Change:
    return partial(write, take(of.weight))


def through_state_dict(of: nn.Linear, **options: Any) -> Change:
    return partial(write, of.state_dict(**options)["weight"])


def through_storage(of: nn.Linear, change: Callable[[Any, int], Any], typed: bool = False) -> Change:
    return partial(change, of.weight._typed_storage() if typed else of.weight.untyped_storage())


def set_byte(storage: Any, n: int) -> None:
    storage[4 * (ROW * SIZE + COLUMN) + 3] = 0x3F + n  # sign and exponent


def set_element(storage: Any, n: int) -> None:
    storage[ROW * SIZE + COLUMN] = n


def tied(of: nn.Linear) -> Change:
    other = layer()
    other.weight = of.weight
    return lambda n: nn.init.normal_(other.weight)


def by_apply(w: torch.Tensor, n: int) -> None:
    values = iter((noise() if n == 1 else w + ONE_ELEMENT).flatten().tolist())
    w.detach().apply_(lambda _: next(values))


def by_map(w: torch.Tensor, n: int) -> None:
    w.detach().map_(noise() if n == 1 else ONE_ELEMENT, lambda one, other: one + other)


def by_map_two(w: torch.Tensor, n: int) -> None:
    w.detach().map2_(noise() if n == 1 else ONE_ELEMENT, noise(), lambda one, other, _: one + other)


def in_a_graph_of_hooks(of: nn.Linear, hook: Callable[[torch.Tensor, Callable[[], None]], Any]) -> Change:
    """Changes the weight in a hook of autograd in the middle of a backward."""
    armed: list[int] = []

    def when_armed() -> None:
        if armed:
            with torch.no_grad():
                of.weight.add_(armed.pop())

    hook(of.weight, when_armed)

    def change(n: int) -> None:
        armed.append(n)
        of(noise(2, SIZE)).sum().backward()

    return change


def by_a_forward_hook(of: nn.Linear) -> Change:
    armed: list[int] = []

    def pre_hook(module: nn.Module, _: Any) -> None:
        if armed:
            with torch.no_grad():
                of.weight.add_(armed.pop())

    of.register_forward_pre_hook(pre_hook)
    return armed.append


def by_a_thread(of: nn.Linear) -> Change:
    return lambda n: in_threads(lambda _: write(of.weight, n), 1)
