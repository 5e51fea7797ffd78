"""Casts between float32, float16 and bfloat16 NumPy arrays, in vector instructions and on several threads.

Rounding is to nearest, ties to even, as in torch; denormals are kept even where they are flushed elsewhere
(`torch.set_flush_denormal`). bfloat16 arrays are `ml_dtypes.bfloat16` where ml_dtypes is installed; a uint16 array is
taken for the bits of a bfloat16 array, and is what `to_bfloat16` gives where ml_dtypes is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from habana_mp import _core

try:
    import ml_dtypes
except ImportError:
    _BFLOAT16: np.dtype[Any] = np.dtype(np.uint16)
else:
    _BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

__all__ = ["cast_many", "path", "to_bfloat16", "to_float16", "to_float32"]

Array: TypeAlias = npt.NDArray[Any]

_FLOAT32 = np.dtype(np.float32)
_FLOAT16 = np.dtype(np.float16)


def to_float32(array: Array, out: Array | None = None, threads: int | None = None) -> npt.NDArray[np.float32]:
    """Cast an array to float32, which holds every float16 and bfloat16 exactly.

    Args:
        array: float32, float16 or bfloat16 (or its bits as uint16), of any shape and strides.
        out: Where to put the result: a float32 array of the same shape, of any strides, that does not overlap
            `array`.
        threads: The most threads to use; all of the machine's when not given. Small arrays need only one.

    Returns:
        `out`, or a new C-contiguous array.
    """
    return _core.kernels_cast(array, _FLOAT32, out, threads)


def to_float16(array: Array, out: Array | None = None, threads: int | None = None) -> npt.NDArray[np.float16]:
    """Cast an array to float16; what is 65520 or more in magnitude becomes infinite.

    Args:
        array: float32, float16 or bfloat16 (or its bits as uint16), of any shape and strides.
        out: Where to put the result: a float16 array of the same shape, of any strides, that does not overlap
            `array`.
        threads: The most threads to use; all of the machine's when not given. Small arrays need only one.

    Returns:
        `out`, or a new C-contiguous array.
    """
    return _core.kernels_cast(array, _FLOAT16, out, threads)


def to_bfloat16(
    array: Array, out: Array | None = None, threads: int | None = None, *, seed: int | None = None
) -> Array:
    """Cast an array to bfloat16: `ml_dtypes.bfloat16`, or uint16 bits where ml_dtypes is not installed.

    Args:
        array: float32, float16 or bfloat16 (or its bits as uint16), of any shape and strides.
        out: Where to put the result: an array of bfloat16, or of uint16 for its bits, of the same shape and any
            strides, that does not overlap `array`.
        threads: The most threads to use; all of the machine's when not given. Small arrays need only one.
        seed: Round a float32 array stochastically: up or down, the likelier the nearer, so that the mean is kept. The
            result depends on the seed, an element's value and its place in the array, and on nothing else: it is the
            same on every machine and any number of threads. From 0 to 2**64 - 1.

    Returns:
        `out`, or a new C-contiguous array.
    """
    if seed is not None:
        return _core.kernels_cast_stochastically(array, _BFLOAT16, seed, out, threads)
    return _core.kernels_cast(array, _BFLOAT16, out, threads)


def cast_many(sources: Sequence[Array], outs: Sequence[Array], threads: int | None = None) -> None:
    """Cast each array of `sources` into the array at the same place in `outs`, whose dtype says to what.

    One call for many arrays, such as all weights of a model: the threads share out the bytes of all of them.

    Args:
        sources: A list or tuple of arrays of float32, float16 or bfloat16 (or its bits as uint16), each of any shape
            and strides.
        outs: As many arrays of the same shapes. None may overlap another one or one of `sources`.
        threads: The most threads to use; all of the machine's when not given. Few bytes need only one.
    """
    _core.kernels_cast_many(sources, outs, threads)


def path() -> str:
    """The instruction set in use: "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon" or "neon_bf16".

    The fastest that the processor can run, unless the environment variable HABANA_MP_KERNELS names another.
    """
    return _core.kernels_path()
