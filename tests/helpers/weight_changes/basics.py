"""The layer whose weight changes, and functions that write into memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import tvm_ffi
from torch import nn

SIZE = 48
# These are not among the few evenly spread elements that are compared.
ROW, COLUMN = 5, 6

Change = Callable[[int], Any]
Way = Callable[[nn.Linear], Change]

# Names that were taken before `convert`.
DATA, GRADLESS_DATA = torch.Tensor.data, torch._C.TensorBase.data
GET_DATA = DATA.__get__
NUMPY, STORAGE = torch.Tensor.numpy, torch.Tensor.untyped_storage


def layer() -> nn.Linear:
    return nn.Linear(SIZE, SIZE)


def noise(*shape: int) -> torch.Tensor:
    return torch.empty(shape or (SIZE, SIZE)).uniform_(0.1, 1.0)


def floats_at(address: int) -> Any:
    """Returns an array over raw memory. The array does not own it."""
    return np.ctypeslib.as_array((ctypes.c_float * (SIZE * SIZE)).from_address(address))


@tvm_ffi.convert
def foreign(weight: Any, n: int) -> None:
    """A function of another language, which borrows the memory of its arguments."""
    write(torch.from_dlpack(weight), n)


def write(alias: Any, n: int) -> None:
    """Writes through an alias that is indexed like an array: all elements, or one."""
    with torch.no_grad():
        alias[... if n == 1 else np.unravel_index(ROW * SIZE + COLUMN, alias.shape)] += 1


def write_at(address: int, n: int) -> None:
    floats_at(address)[ROW * SIZE + COLUMN] += n
