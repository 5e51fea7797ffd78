"""Changes of a weight through memory that has another owner."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from helpers.weight_changes.basics import COLUMN, ROW, SIZE, Change, floats_at, write


def _over(array: Any) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(array))


def _values() -> Any:
    return np.random.default_rng(0).uniform(-0.5, 0.5, (SIZE, SIZE)).astype(np.float32)


def from_numpy(of: nn.Linear) -> Change:
    array = _values()
    of.weight = _over(array)
    return partial(write, array)


def from_dlpack(of: nn.Linear) -> Change:
    array = _values()
    of.weight = nn.Parameter(torch.from_dlpack(array))
    return partial(write, array)


def from_bytes(of: nn.Linear) -> Change:
    memory = bytearray(_values().tobytes())
    of.weight = nn.Parameter(torch.frombuffer(memory, dtype=torch.float32).view(SIZE, SIZE))
    return partial(write, np.frombuffer(memory, np.float32))


def half_of_a_tensor(of: nn.Linear) -> Change:
    whole = torch.from_numpy(np.concatenate([_values(), _values()])).clone()
    of.weight = nn.Parameter(whole[SIZE:])
    return lambda n: write(whole[SIZE:], n)


def memmap(of: nn.Linear) -> Change:
    file = tempfile.NamedTemporaryFile()  # noqa: SIM115  # lives as long as the map
    array = np.memmap(file, np.float32, "w+", shape=(SIZE, SIZE))
    array[:] = _values()
    of.weight = _over(array)
    return partial(write, array)


def of_file(of: nn.Linear, change: Callable[[Any, int], None]) -> Change:
    """A weight in a file that other code maps or writes too."""
    file = tempfile.NamedTemporaryFile()  # noqa: SIM115  # lives as long as the map
    file.write(_values().tobytes())
    file.flush()
    of.weight = nn.Parameter(torch.from_file(file.name, shared=True, size=SIZE * SIZE).view(SIZE, SIZE))
    return partial(change, file)


def map_again(file: Any, n: int) -> None:
    write(np.memmap(file.name, np.float32, "r+", shape=(SIZE, SIZE)), n)


def write_the_file(file: Any, n: int) -> None:
    os.pwrite(file.fileno(), np.float32(n).tobytes(), 4 * (ROW * SIZE + COLUMN))


def shared(of: nn.Linear) -> Change:
    of.share_memory()

    def change(n: int) -> None:
        child = os.fork()
        if child == 0:
            try:
                floats_at(of.weight.data_ptr())[ROW * SIZE + COLUMN if n == 2 else slice(None)] += 1
            finally:
                os._exit(0)
        os.waitpid(child, 0)

    return change
