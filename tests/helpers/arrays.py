"""Bits of arrays that are hard to cast, and the results of torch's casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from habana_mp import _core, kernels
from helpers.each import each

Array = npt.NDArray[Any]
PATHS = _core.kernels_paths()
DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
INTEGERS = {"float32": torch.int32, "float16": torch.int16, "bfloat16": torch.int16}
BITS: dict[str, Any] = {"float32": np.dtype(np.uint32), "float16": np.dtype(np.uint16), "bfloat16": np.dtype(np.uint16)}
INFINITY = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}
CASTS = [(source, target) for source in DTYPES for target in DTYPES if source != target]
FACES: dict[str, Callable[..., Array]] = {
    "float32": kernels.to_float32,
    "float16": kernels.to_float16,
    "bfloat16": kernels.to_bfloat16,
}
every_path = each("path", PATHS)
every_cast = each("source, target", CASTS)


def torch_bits(bits: Array, source: str, target: str) -> Array:
    """Casts the bits of `source` values in torch, and returns the bits of the `target` values."""
    signed = bits.astype(BITS[source], copy=True).view(np.dtype(f"int{BITS[source].itemsize * 8}"))
    cast = torch.from_numpy(signed).view(TORCH[source]).to(TORCH[target])
    expected: Array = cast.view(INTEGERS[target]).numpy().view(BITS[target])
    return expected


def our_bits(bits: Array, source: str, target: str, path: str, *, threads: int = 1) -> Array:
    array = bits.astype(BITS[source], copy=False).view(DTYPES[source])
    ours: Array = _core.kernels_cast(array, DTYPES[target], None, threads, path).view(BITS[target])
    return ours


def is_nan(bits: Array, dtype: str) -> npt.NDArray[np.bool_]:
    magnitude: Array = bits & BITS[dtype].type((1 << (BITS[dtype].itemsize * 8 - 1)) - 1)
    return np.asarray(magnitude > INFINITY[dtype])


def assert_same_bits(ours: Array, expected: Array, dtype: str, inputs: Array | None = None) -> None:
    """Asserts that the bits are equal. Any NaN counts as equal to any other NaN."""
    same = (ours == expected) | (is_nan(ours, dtype) & is_nan(expected, dtype))
    if same.all():
        return
    at = int(np.flatnonzero(~same)[0])
    what = "" if inputs is None else f" of {inputs[at]:#x}"
    raise AssertionError(f"element {at}{what}: {ours[at]:#x}, but torch gives {expected[at]:#x}")


def hard_bits() -> npt.NDArray[np.uint32]:
    """Returns float32 bits of every sign and exponent, with the mantissas at which the rounding changes."""
    mantissas = {0, 1, 2, 0x7FFFFF, 0x7FFFFE, 0x400000, 0x3FFFFF, 0x400001}
    for kept in range(23):  # a tie at every bit; this includes float16's denormals
        half = 1 << kept
        for odd in (0, half << 1):
            for rest in (half - 1, half, half + 1):
                mantissas.add((odd | rest) & 0x7FFFFF)
                mantissas.add((0x7FFFFF ^ (half << 1 | half)) & 0x7FFFFF | rest & half)
        mantissas.add(0x7FFFFF ^ (half - 1))
        mantissas.add((0x7FFFFF ^ (half - 1)) - 1 & 0x7FFFFF)
    mantissa = np.array(sorted(mantissas), np.uint32)
    upper = (np.arange(512, dtype=np.uint32) << 23)[:, None]
    bits = (upper | mantissa).ravel()
    # The neighbours of float16's largest and smallest values, and values that round up to infinity in bfloat16.
    edges = [0x477FE000, 0x477FEFFF, 0x477FF000, 0x477FFFFF, 0x47800000, 0x33000000, 0x33000001, 0x32FFFFFF]
    edges += [0x387FC000, 0x387FE000, 0x387FFFFF, 0x38800000, 0x7F7F0000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF]
    edges += [0x7F800000, 0x7F800001, 0x7FBFFFFF, 0x7FC00000, 0x7FFFFFFF, 0x00400000, 0x00008000, 0x00018000, 1]
    edge = np.array(edges, np.uint32)
    return np.concatenate([bits, edge, edge | np.uint32(0x80000000)])


def random_bits(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 1 << 32, shape, np.uint32).astype(BITS[dtype])
