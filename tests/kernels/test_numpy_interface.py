"""The public functions that cast NumPy's arrays, and their errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from habana_mp import kernels
from helpers.arrays import BITS, DTYPES, FACES, PATHS, assert_same_bits, every_cast, torch_bits
from helpers.each import each
from helpers.processes import run_script


def test_path_is_one_of_those_the_processor_can_run() -> None:
    assert kernels.path() in PATHS
    assert PATHS[0] == "scalar"


@every_cast
def test_the_public_functions_give_what_torch_gives(source: str, target: str) -> None:
    bits = np.random.default_rng(9).integers(0, 1 << 32, (50, 100), np.uint32).astype(BITS[source])
    for given in (bits, bits.T, bits[::2, 1::3]):
        ours = FACES[target](given.view(DTYPES[source]))
        assert ours.dtype == DTYPES[target]
        assert ours.flags.c_contiguous
        expected = torch_bits(np.ascontiguousarray(given), source, target)
        assert_same_bits(ours.view(BITS[target]).ravel(), expected.ravel(), target)


def test_uint16_counts_as_the_bits_of_bfloat16() -> None:
    bits = np.array([0x3F80, 0xC000, 0x7F80], np.uint16)
    assert kernels.to_float32(bits).tolist() == [1.0, -2.0, np.inf]
    out = np.empty(3, np.uint16)
    assert kernels.to_bfloat16(np.array([1.0, -2.0, np.inf], np.float32), out) is out
    assert out.tolist() == bits.tolist()


def test_without_ml_dtypes_bfloat16_is_given_as_its_bits() -> None:
    done = run_script("""
import sys
sys.modules["ml_dtypes"] = None
import numpy as np
from habana_mp import kernels
bits = kernels.to_bfloat16(np.array([1.0, -2.0], np.float32))
print(bits.dtype, bits.tolist(), kernels.to_float32(bits).tolist())
""")
    assert done.stdout.strip() == "uint16 [16256, 49152] [1.0, -2.0]", done.stderr


@each("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 5)])
@every_cast
def test_every_shape_is_kept(shape: tuple[int, ...], source: str, target: str) -> None:
    array = np.ones(shape, np.float32).astype(DTYPES[source])
    ours = FACES[target](array)
    assert isinstance(ours, np.ndarray)
    assert ours.shape == shape
    assert (ours.astype(np.float32) == 1).all()
    out = np.zeros(shape, DTYPES[target])
    assert FACES[target](array, out=out) is out
    assert (out.astype(np.float32) == 1).all()


F32 = np.ones((2, 3), np.float32)


@each(
    "array, message",
    [
        ([1.0], "`array` must be a NumPy array of float32, float16 or bfloat16 .*, got list"),
        (None, "`array` must be a NumPy array .*, got NoneType"),
        (np.ones(3), "`array` must be of float32, float16 or bfloat16 .*, got an array of float64"),
        (np.ones(3, np.int32), "`array` must be of .*, got an array of int32"),
        (np.ones(3, np.dtype(np.float32).newbyteorder()), "native byte order, got an array of [<>]f4"),
    ],
)
def test_an_array_of_another_kind_is_an_error_that_says_what_came(array: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        kernels.to_bfloat16(array)


@each(
    "out, error, message",
    [
        ([1.0], TypeError, "`out` must be a NumPy array of float16 or None, got list"),
        (
            np.ones((2, 3), np.float32),
            TypeError,
            "`out` must be an array of float16 in native byte order, got an array of float32",
        ),
        (np.ones((2, 3), np.dtype(np.float16).newbyteorder()), TypeError, "native byte order, got an array of [<>]f2"),
        (
            np.ones((3, 2), np.float16),
            ValueError,
            r"`out` must have the shape of `array`, \(2, 3\), got \(3, 2\)",
        ),
        (
            np.lib.stride_tricks.as_strided(np.ones(3, np.float16), (2, 3), (0, 2)),
            ValueError,
            r"`out` must not overlap itself, got an array of shape \(2, 3\) with strides \(0, 2\)",
        ),
        (np.broadcast_to(np.float16(1), (2, 3)), ValueError, "`out` must be writeable, got a read-only"),
    ],
)
def test_an_unfit_out_is_an_error_that_says_what_came(out: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        kernels.to_float16(F32, out)


def test_an_out_that_overlaps_the_array_is_an_error() -> None:
    memory = np.zeros(100, np.float32)
    halves = memory.view(np.float16)
    for array, out in [
        (memory, halves[:100]),
        (memory, halves[100:]),
        (memory[50:], halves[1:51]),
        (memory[::-1], halves[:100]),
        (memory[10:60:2], halves[100:125]),
    ]:
        if array.size == out.size and np.may_share_memory(array, out):
            with pytest.raises(ValueError, match="`out` must not overlap `array`, got arrays that share memory"):
                kernels.to_float16(array, out)
    with pytest.raises(ValueError, match="must not overlap"):
        kernels.to_float32(memory, memory)


def test_an_out_beside_the_array_in_the_same_memory_is_no_overlap() -> None:
    memory = np.ones(150, np.float32)
    out = memory[100:].view(np.float16)
    assert kernels.to_float16(memory[:100], out) is out
    assert (out == 1).all()
    assert kernels.to_float16(memory[:0], memory.view(np.float16)[:0]).size == 0


@each(
    "threads, error, message",
    [
        (0, ValueError, "`threads` must be at least 1, got 0"),
        (-1, ValueError, "`threads` must be at least 1, got -1"),
        (-(10**30), ValueError, "`threads` must be at least 1, got -1000"),
        (1.5, TypeError, "`threads` must be an int or None, got float"),
        ("2", TypeError, "`threads` must be an int or None, got str"),
        (True, TypeError, "`threads` must be an int or None, got bool"),
    ],
)
def test_an_impossible_number_of_threads_is_an_error(threads: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        kernels.to_float16(F32, threads=threads)
