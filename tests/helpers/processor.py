"""Finds out abilities of this processor, and of plain torch on it, by trying, never by the processor's name."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from habana_mp import _core, hmp
from helpers.comparing import tensors

#: Takes rows, a weight and a bias, which may be None if it is not added.
Call = Callable[[torch.Tensor, torch.Tensor, Any], torch.Tensor]

#: With AMX the package's kernels compute products of at most so many rows, unless the weight is small.
_MOST_ROWS_WITH_TILES = 32
_SMALL_WEIGHT = 1 << 16


def by_hand() -> AbstractContextManager[Any]:
    """Returns a block for products of operands that were cast by hand: without casts; or as the lists are where torch
    has no instructions for them, for there the package computes them, and sums in another order."""
    return hmp.disable_casts() if _core.kernels_multiplies_bfloat16() else nullcontext()


def as_everywhere(text: str) -> str:
    """Returns it without the lines of a report that are others on a processor without instructions for bfloat16: there
    small weights are cached too, and the package's kernels compute products."""
    others = re.compile(r"^(cached casts of weights|products with weights by).*\n?", re.MULTILINE)
    return text if _core.kernels_multiplies_bfloat16() else others.sub("", text)


def own_kernels_compute(rows: int, weight: torch.Tensor) -> bool:
    """True if the package's kernels compute products of so many rows here."""
    is_left = _core.kernels_path() == "amx" and rows > _MOST_ROWS_WITH_TILES and weight.numel() > _SMALL_WEIGHT
    return _core.kernels_path() != "scalar" and not is_left


def _bits(values: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint16]]:
    return values.contiguous().view(torch.int16).numpy().view(np.uint16)


def kernels_product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, inner_first: bool = False
) -> torch.Tensor:
    """Returns the product of bfloat16 rows, a weight [outer][inner] and a bias by the package's kernels. With AMX they
    sum in another order if the weight is [inner][outer] in memory."""
    rows = x.reshape(-1, x.shape[-1])
    result = np.empty((rows.shape[0], weight.shape[0]), np.uint16)
    given = _bits(weight.t() if inner_first else weight)
    path = _core.kernels_path()
    _core.kernels_multiply(
        _bits(rows), given, None if bias is None else _bits(bias), result, path, inner_first=inner_first
    )
    made = torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
    return made.view(*x.shape[:-1], weight.shape[0])


def aot_eager_gives_the_bits_of_eager(function: Callable[..., Any], *arguments: Any) -> bool:
    """Compares the two ways in plain torch."""
    with hmp.disable_casts():
        expected = tensors(function(*arguments))
        compiled = tensors(torch.compile(function, backend="aot_eager", fullgraph=True)(*arguments))
    return all(map(torch.equal, compiled, expected))


def can_run(call: Callable[[], object]) -> bool:
    """True if plain torch has all kernels for the call here."""
    try:
        call()
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        return False
    return True


def has_lstm(dtype: torch.dtype) -> bool:
    """True if torch's CPU library has an LSTM in that precision for this processor."""
    module, x = torch.nn.LSTM(8, 6), torch.zeros(4, 4, 8)

    def call() -> None:
        with torch.autocast("cpu", dtype):
            module(x)

    return can_run(call)
