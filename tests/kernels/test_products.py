"""Products with a stored weight by our kernels, beside a plain loop that sums in the same order: the same bits.

This loop says what a product is: src/kernels/product.hpp has the orders in words.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from habana_mp import _core, kernels
from helpers.each import each

Bits = NDArray[np.uint16]
Floats = NDArray[np.float32]

#: The instruction sets with kernels for products, each with a kind of numbers.
PATHS = [(path, is_float16) for path in _core.kernels_paths() if path != "scalar" for is_float16 in (False, True)]
in_each_way = pytest.mark.parametrize(("path", "is_float16"), PATHS)
in_both_layouts = pytest.mark.parametrize("inner_first", [False, True])

#: The numbers of a row that are summed at once.
IN_FLOAT32, IN_PAIRS, IN_TILES = 512, 256, 32
#: From this number of rows on, AMX's tiles compute a product.
ROWS_OF_TILES = 16


def bits_of(values: Floats, is_float16: bool) -> Bits:
    if is_float16:
        return values.astype(np.float16).view(np.uint16)
    return kernels.to_bfloat16(np.ascontiguousarray(values)).view(np.uint16)


def floats_of(bits: Bits, is_float16: bool) -> Floats:
    if is_float16:
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def by_hand(
    x: Bits,
    weight: Bits,
    bias: Bits | Floats | None,
    path: str,
    is_float16: bool,
    *,
    inner_first: bool = False,
    float32_result: bool = False,
) -> Bits | Floats:
    rows, inner = x.shape
    left, right = (floats_of(one, is_float16).astype(np.float64) for one in (x, weight))
    nothing = np.zeros((rows, weight.shape[0]), np.float32)

    def summed(positions: Iterable[int]) -> Floats:
        part = nothing
        for k in positions:
            # The product of two such numbers is exact in float64, and so is the sum but for a last rounding.
            part = (part + left[:, k : k + 1] * right[:, k]).astype(np.float32)
        return part

    in_pairs = path in ("avx512_bf16", "amx") and not is_float16 and inner % 2 == 0
    by_tiles = in_pairs and path == "amx" and not inner_first and rows >= ROWS_OF_TILES
    at_once = IN_TILES if by_tiles else IN_PAIRS if in_pairs else IN_FLOAT32
    total = nothing
    for begin in range(0, inner, at_once):
        end = min(begin + at_once, inner)
        if by_tiles:
            total = total + (summed(range(begin, end, 2)) + summed(range(begin + 1, end, 2)))
        elif in_pairs:
            total = total + summed([k for pair in range(begin, end, 2) for k in (pair + 1, pair)])
        else:
            total = (total + summed(range(begin, end, 2))) + summed(range(begin + 1, end, 2))
    if bias is not None:
        total = total + (bias if float32_result else floats_of(bias, is_float16))
    return total if float32_result else bits_of(total, is_float16)


def noise(rng: np.random.Generator, is_float16: bool, *shape: int) -> Bits:
    return bits_of((rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 3, shape)).astype(np.float32), is_float16)


def spread(values: Bits, gap: int) -> Bits:
    """The same rows, so many elements apart. A kernel that reads the elements in between gives NaN."""
    rows, length = values.shape
    apart = np.full((rows, length + gap), 0x7FFF, np.uint16)
    apart[:, :length] = values
    return apart[:, :length]


def multiplied(
    x: Bits,
    weight: Bits,
    bias: Bits | Floats | None,
    path: str,
    is_float16: bool,
    *,
    inner_first: bool = False,
    threads: int = 1,
    gaps: tuple[int, int] = (0, 0),
    float32_result: bool = False,
) -> Any:
    """With memory around the result that must stay what it is, and with gaps between the rows of input and weight."""
    rows, outer = x.shape[0], weight.shape[0]
    memory = np.full(rows * outer + 64, 0x1234, np.float32 if float32_result else np.uint16)
    result = memory[32 : 32 + rows * outer].reshape(rows, outer)
    given = spread(weight.T if inner_first else weight, gaps[1])
    _core.kernels_multiply(spread(x, gaps[0]), given, bias, result, path, is_float16, threads, inner_first)
    assert (memory[:32] == 0x1234).all()
    assert (memory[-32:] == 0x1234).all()
    return result


#: Around these numbers of rows and columns the kernels go other ways.
ROWS = [*range(1, 10), 12, 13, 15, 16, 17, 63, 64, 65, 130]
OUTER = [*range(1, 18), 31, 32, 33, 63, 64, 65, 127, 128, 129, 130]


@in_each_way
@in_both_layouts
@given(
    rows=st.sampled_from([*ROWS, 520]),
    outer=st.sampled_from(OUTER),
    inner=st.integers(1, 140) | st.sampled_from([255, 256, 257, 511, 512, 513, 770, 1030]),
    has_bias=st.booleans(),
    float32_result=st.booleans(),
    gaps=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    seed=st.integers(0, 1 << 20),
)
def test_any_shape_gives_the_bits_of_a_plain_loop(
    path: str,
    is_float16: bool,
    inner_first: bool,
    rows: int,
    outer: int,
    inner: int,
    has_bias: bool,
    float32_result: bool,
    gaps: tuple[int, int],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    x, weight = noise(rng, is_float16, rows, inner), noise(rng, is_float16, outer, inner)
    bias: Bits | Floats | None = noise(rng, is_float16, outer) if has_bias else None
    if bias is not None and float32_result:
        bias = rng.standard_normal(outer).astype(np.float32)
    way: Any = {"inner_first": inner_first, "float32_result": float32_result}
    ours = multiplied(x, weight, bias, path, is_float16, gaps=gaps, **way)
    assert np.array_equal(ours, by_hand(x, weight, bias, path, is_float16, **way))


@in_each_way
@each("outer", OUTER)
def test_a_row_has_the_same_bits_alone_and_at_each_place_of_a_batch(path: str, is_float16: bool, outer: int) -> None:
    rng = np.random.default_rng(outer)
    inner = 600
    x, weight, bias = (noise(rng, is_float16, *shape) for shape in ((max(ROWS), inner), (outer, inner), (outer,)))
    order = rng.permutation(len(x))
    for inner_first, gap in ((False, 0), (True, 3)):
        few = x[: ROWS_OF_TILES - 1] if path == "amx" else x
        expected = np.concatenate(
            [multiplied(one[None], weight, bias, path, is_float16, inner_first=inner_first) for one in few]
        )
        for rows in ROWS if path != "amx" else [one for one in ROWS if one < ROWS_OF_TILES]:
            ours = multiplied(x[:rows], weight, bias, path, is_float16, inner_first=inner_first, gaps=(gap, gap))
            assert np.array_equal(ours, expected[:rows]), (rows, inner_first)
        shuffled = multiplied(x[order], weight, bias, path, is_float16, inner_first=inner_first)
        whole = multiplied(x, weight, bias, path, is_float16, inner_first=inner_first)
        assert np.array_equal(shuffled, whole[order])


#: Each with more than 2^19 multiplications, from which on threads are used.
LARGE = [(1, 1100, 500), (5, 700, 514), (16, 130, 256), (130, 65, 64), (300, 64, 96), (530, 33, 31)]


@in_each_way
@in_both_layouts
@each("rows, outer, inner", LARGE)
def test_the_number_of_threads_changes_nothing(
    path: str, is_float16: bool, inner_first: bool, rows: int, outer: int, inner: int
) -> None:
    rng = np.random.default_rng(rows)
    x, weight, bias = (noise(rng, is_float16, *shape) for shape in ((rows, inner), (outer, inner), (outer,)))
    expected = by_hand(x, weight, bias, path, is_float16, inner_first=inner_first)
    for threads in (1, 2, 3, 5):
        ours = multiplied(x, weight, bias, path, is_float16, inner_first=inner_first, threads=threads, gaps=(0, 4))
        assert np.array_equal(ours, expected), threads


@in_each_way
@in_both_layouts
@each("rows", [1, 5, 9, 17, 65])
def test_small_whole_numbers_have_the_bits_of_float64_rounded_once(
    path: str, is_float16: bool, inner_first: bool, rows: int
) -> None:
    rng = np.random.default_rng(rows)
    x, weight, bias = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((rows, 700), (70, 700), (70,)))
    given = [bits_of(one, is_float16) for one in (x, weight, bias)]
    exact = x.astype(np.float64) @ weight.astype(np.float64).T + bias
    ours = multiplied(*given, path, is_float16, inner_first=inner_first)  # type: ignore[arg-type]  # three arrays
    assert np.array_equal(ours, bits_of(exact.astype(np.float32), is_float16))


@in_each_way
@in_both_layouts
@each("inner", [3, 64, 1000, 4096, 20_001])
def test_sums_of_one_sign_stay_near_the_exact_ones(path: str, is_float16: bool, inner_first: bool, inner: int) -> None:
    rng = np.random.default_rng(inner)
    for rows in (1, 20):
        x, weight = (bits_of(rng.random((n, inner), np.float32), is_float16) for n in (rows, 9))
        exact = floats_of(x, is_float16).astype(np.float64) @ floats_of(weight, is_float16).astype(np.float64).T
        ours = floats_of(multiplied(x, weight, None, path, is_float16, inner_first=inner_first), is_float16)
        bound = 8 * inner**0.5 * 2.0**-24 + 1.01 * (2.0**-11 if is_float16 else 2.0**-8)
        assert (np.abs(ours - exact) <= bound * exact).all()


@in_each_way
@in_both_layouts
@each("rows", [3, 9, 17])
def test_what_is_not_finite_stays_in_its_row_and_column(
    path: str, is_float16: bool, inner_first: bool, rows: int
) -> None:
    rng = np.random.default_rng(0)
    x, weight = noise(rng, is_float16, rows, 64), noise(rng, is_float16, 70, 64)
    expected = multiplied(x, weight, None, path, is_float16, inner_first=inner_first)
    infinity = 0x7C00 if is_float16 else 0x7F80
    x[2, 5], weight[66, 7] = infinity, 0x8000 | infinity
    ours = floats_of(multiplied(x, weight, None, path, is_float16, inner_first=inner_first), is_float16)
    touched = np.zeros(ours.shape, bool)
    touched[2], touched[:, 66] = True, True
    assert not np.isfinite(ours[touched]).any()
    assert np.array_equal(ours[~touched], floats_of(expected, is_float16)[~touched])


@in_each_way
@in_both_layouts
@each("rows", [2, 9, 17])
def test_denormals_count_unless_the_processor_s_instruction_ignores_them(
    path: str, is_float16: bool, inner_first: bool, rows: int
) -> None:
    one = bits_of(np.ones(1, np.float32), is_float16)[0]
    x, weight = np.full((rows, 4), 0x0010, np.uint16), np.full((3, 4), one, np.uint16)
    ours = multiplied(x, weight, None, path, is_float16, inner_first=inner_first)
    ignores = path in ("avx512_bf16", "amx") and not is_float16
    assert (ours == (0 if ignores else 0x0040)).all()


def at_the_end_of_memory(*shape: int, dtype: Any = np.uint16) -> NDArray[Any]:
    """An array of ones whose last element is followed by a page that nothing may read."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    pages = -(-size // mmap.PAGESIZE) + 1
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    guard = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + (pages - 1) * mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), mmap.PAGESIZE, 0) == 0
    array = np.frombuffer(memory, dtype, int(np.prod(shape)), (pages - 1) * mmap.PAGESIZE - size).reshape(shape)
    array[:] = 0x3F80
    return array


@in_each_way
@in_both_layouts
@each("rows", [1, 5, 9, 17, 40])
def test_nothing_is_read_or_written_behind_an_array(path: str, is_float16: bool, inner_first: bool, rows: int) -> None:
    for inner, outer in itertools.product((1, 3, 16, 33, 63, 257, 513), (1, 3, 8, 17, 33, 65)):
        x, weight = (at_the_end_of_memory(*one) for one in ((rows, inner), (outer, inner)[:: -1 if inner_first else 1]))
        for dtype in (np.uint16, np.float32):
            bias, result = (at_the_end_of_memory(*shape, dtype=dtype) for shape in ((outer,), (rows, outer)))
            _core.kernels_multiply(x, weight, bias, result, path, is_float16, 1, inner_first)


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    x, weight, result = (np.zeros(shape, np.uint16) for shape in ((2, 4), (3, 4), (2, 3)))
    path = PATHS[0][0]
    for arguments in (
        (x[0], weight, None, result, path),
        (x[:, ::2], weight[:, :2], None, result, path),
        (np.broadcast_to(x[0], (2, 4)), weight, None, result, path),
        (x, weight[0], None, result, path),
        (x[:, :2], weight[:, ::2], None, result, path),
        (x, np.broadcast_to(weight[0], (3, 4)), None, result, path),
        (x, weight[:2], None, result, path),
        (x[:, :2], weight, None, result, path),
        (x[:, :0], weight[:, :0], None, result, path),
        (x, weight, np.zeros(2, np.uint16), result, path),
        (x, weight, None, result[:1], path),
        (x, weight, None, result[0], path),
        (x, weight, None, result, "rows"),
        (x, weight, None, result, "scalar"),
    ):
        with pytest.raises(ValueError, match=r"must|no such kernels"):
            _core.kernels_multiply(*arguments)  # type: ignore[arg-type]  # the arrays' types are right
    with pytest.raises(ValueError, match="for input and result"):
        _core.kernels_multiply(x, weight, None, result, path, inner_first=True)
    with pytest.raises(ValueError, match="for input and result"):
        _core.kernels_multiply(x, np.ascontiguousarray(weight.T), None, result, path)
    with pytest.raises(ValueError, match="must hold"):
        _core.kernels_multiply(x, weight, None, result.astype(np.int64), path)
