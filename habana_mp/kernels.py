"""Casts between float32, float16 and bfloat16 NumPy arrays, with vector instructions and on torch's threads.

Rounding is to nearest, ties to even, as in torch. Denormals are preserved, even if `torch.set_flush_denormal` makes
other code flush them. bfloat16 arrays are `ml_dtypes.bfloat16` if ml_dtypes is installed. A uint16 array is read as the
bits of a bfloat16 array; `to_bfloat16` returns such an array if ml_dtypes is not installed.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from habana_mp import _core
from habana_mp.common.bound import bind_torch

try:
    import ml_dtypes
except ImportError:
    _BFLOAT16: np.dtype[Any] = np.dtype(np.uint16)
else:
    _BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

__all__ = ["path", "to_bfloat16", "to_float16", "to_float32"]

Array: TypeAlias = npt.NDArray[Any]

_FLOAT32 = np.dtype(np.float32)
_FLOAT16 = np.dtype(np.float16)


def to_float32(array: Array, out: Array | None = None, threads: int | None = None) -> npt.NDArray[np.float32]:
    """Casts an array to float32, which represents every float16 and bfloat16 value exactly.

    Args:
        array: float32, float16 or bfloat16 (or its bits as uint16), of any shape and strides.
        out: The array for the result: float32, of the same shape, of any strides. It must not overlap `array`.
        threads: The most of torch's threads to use; by default all. Small arrays need only one.

    Returns:
        `out`, or a new C-contiguous array.
    """
    return _cast(array, _FLOAT32, out, threads)


def to_float16(array: Array, out: Array | None = None, threads: int | None = None) -> npt.NDArray[np.float16]:
    """Casts an array to float16. Values of 65520 or more in magnitude become infinite.

    Args:
        array: float32, float16 or bfloat16 (or its bits as uint16), of any shape and strides.
        out: The array for the result: float16, of the same shape, of any strides. It must not overlap `array`.
        threads: The most of torch's threads to use; by default all. Small arrays need only one.

    Returns:
        `out`, or a new C-contiguous array.
    """
    return _cast(array, _FLOAT16, out, threads)


def to_bfloat16(array: Array, out: Array | None = None, threads: int | None = None) -> Array:
    """Casts an array to bfloat16: `ml_dtypes.bfloat16`, or its bits as uint16 if ml_dtypes is not installed.

    Args:
        array: float32, float16 or bfloat16 (or its bits as uint16), of any shape and strides.
        out: The array for the result: bfloat16, or uint16 for its bits, of the same shape, of any strides. It must not
            overlap `array`.
        threads: The most of torch's threads to use; by default all. Small arrays need only one.

    Returns:
        `out`, or a new C-contiguous array.
    """
    return _cast(array, _BFLOAT16, out, threads)


def _cast(array: Array, dtype: np.dtype[Any], out: Array | None, threads: int | None) -> Array:
    bind_torch()  # whose threads run the kernels
    return _core.kernels_cast(array, dtype, out, threads)


def path() -> str:
    """Returns the instruction set in use: "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon" or "neon_bf16".

    It is the fastest one that the processor supports, unless the environment variable HABANA_MP_KERNELS names another.
    """
    return _core.kernels_path()
