"""Products with a stored weight by our kernels, beside a plain loop that sums in the same order: the same bits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from habana_mp import _core, kernels
from helpers.each import each

pytestmark = [
    pytest.mark.processor,
    pytest.mark.skipif(not _core.kernels_can_multiply(), reason="this processor multiplies no bfloat16 pairs"),
]

Bits = NDArray[np.uint16]
Floats = NDArray[np.float32]


def bits_of(values: Floats) -> Bits:
    return kernels.to_bfloat16(np.ascontiguousarray(values)).view(np.uint16)


def floats_of(bits: Bits) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


in_each_order = pytest.mark.parametrize("order", _core.kernels_orders())
in_both_layouts = pytest.mark.parametrize("inner_first", [False, True])


def by_hand(x: Bits, weight: Bits, bias: Bits | None, order: str, block: int) -> Bits:
    """In pairs the processor's instruction adds the products one after the other, the second one first."""
    inner = x.shape[1]
    left, right = floats_of(x).astype(np.float64), floats_of(weight).astype(np.float64)
    nothing = np.zeros((x.shape[0], weight.shape[0]), np.float32)

    def with_product(part: Floats, i: int) -> Floats:
        # Products of two bfloat16 are exact in float64, and so are these sums but for a last rounding.
        return (part + left[:, i : i + 1] * right[:, i]).astype(np.float32)

    def in_lanes() -> Floats:
        sums = [nothing] * 16
        for k in range(0, inner, 2):
            sums[k // 2 % 16] = with_product(with_product(sums[k // 2 % 16], k + 1), k)
        for half in (8, 4):
            sums = [sums[i] + sums[i + half] for i in range(half)]
        return (sums[0] + sums[1]) + (sums[2] + sums[3])

    def in_pairs(begin: int, end: int) -> Floats:
        part = nothing
        for k in range(begin, end, 2):
            part = with_product(with_product(part, k + 1), k)
        return part

    def in_tiles(begin: int, end: int) -> Floats:
        part = nothing
        for group in range(begin, end, 32):
            even = odd = nothing
            for k in range(group, min(group + 32, end), 2):
                even, odd = with_product(even, k), with_product(odd, k + 1)
            part = part + (even + odd)
        return part

    def folded(sums: list[Floats]) -> Floats:
        while len(sums) > 1:
            half = len(sums) // 2
            sums = [sums[i] + sums[half + i] for i in range(half)]
        return sums[0]

    def in_dots() -> Floats:
        whole, grouped = inner // 64 * 64, inner // 16 * 16
        sums, of_groups = [nothing] * 64, [nothing] * 8
        for k in range(whole):
            sums[k % 64] = with_product(sums[k % 64], k)
        for k in range(whole, grouped):
            of_groups[k % 8] = with_product(of_groups[k % 8], k)
        part = folded(sums) + folded(of_groups)
        for k in range(grouped, inner):
            part = with_product(part, k)
        return part

    if order in ("lanes", "dots"):
        total = in_lanes() if order == "lanes" else in_dots()
    else:
        in_order = in_pairs if order == "pairs" else in_tiles
        total = in_order(0, min(block, inner))
        for begin in range(block, inner, block):
            total = total + in_order(begin, min(begin + block, inner))
    if bias is not None:
        total = total + floats_of(bias)
    return bits_of(total)


def noise(rng: np.random.Generator, *shape: int) -> Bits:
    return bits_of((rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)).astype(np.float32))


def spread(values: Bits, gap: int) -> Bits:
    """The same rows, so many elements apart. A kernel that reads the elements in between gives NaN."""
    rows, length = values.shape
    apart = np.full((rows, length + gap), 0x7FC0, np.uint16)
    apart[:, :length] = values
    return apart[:, :length]


def multiplied(
    x: Bits,
    weight: Bits,
    bias: Bits | None,
    order: str,
    block: int,
    *,
    inner_first: bool = False,
    threads: int = 1,
    gaps: tuple[int, int] = (0, 0),
) -> Bits:
    """With memory around the result that must stay what it is, and with gaps between the rows of input and weight."""
    rows, outer = x.shape[0], weight.shape[0]
    memory = np.full(rows * outer + 64, 0x1234, np.uint16)
    result = memory[32 : 32 + rows * outer].reshape(rows, outer)
    given = spread(weight.T if inner_first else weight, gaps[1])
    _core.kernels_multiply(spread(x, gaps[0]), given, bias, result, order, block, threads, inner_first)
    assert (memory[:32] == 0x1234).all()
    assert (memory[-32:] == 0x1234).all()
    return result


#: Around these numbers of rows and columns the kernels go other ways.
ROWS = [*range(1, 10), 15, 16, 17, 63, 64, 65, 130]
OUTER = [*range(1, 18), 63, 64, 65, 127, 128, 129, 130]


@in_each_order
@in_both_layouts
@given(
    rows=st.sampled_from(ROWS),
    outer=st.sampled_from(OUTER),
    pairs=st.integers(1, 140),
    block=st.integers(1, 70),
    has_bias=st.booleans(),
    gaps=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    seed=st.integers(0, 1 << 20),
)
def test_any_shape_gives_the_bits_of_a_plain_loop(
    order: str,
    inner_first: bool,
    rows: int,
    outer: int,
    pairs: int,
    block: int,
    has_bias: bool,
    gaps: tuple[int, int],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    x, weight = noise(rng, rows, 2 * pairs), noise(rng, outer, 2 * pairs)
    bias = noise(rng, outer) if has_bias else None
    ours = multiplied(x, weight, bias, order, 2 * block, inner_first=inner_first, gaps=gaps)
    assert np.array_equal(ours, by_hand(x, weight, bias, order, 2 * block))


@in_each_order
@each("outer", OUTER)
def test_each_number_of_rows_and_columns_gives_the_bits_of_a_plain_loop(order: str, outer: int) -> None:
    rng = np.random.default_rng(outer)
    x, weight, bias = noise(rng, max(ROWS), 70), noise(rng, outer, 70), noise(rng, outer)
    expected = by_hand(x, weight, bias, order, 64)
    for rows, inner_first in itertools.product(ROWS, (False, True)):
        ours = multiplied(x[:rows], weight, bias, order, 64, inner_first=inner_first)
        assert np.array_equal(ours, expected[:rows]), (rows, inner_first)


#: Each with more than 2^19 multiplications, from which on threads are used.
LARGE = [(1, 1100, 500), (5, 700, 514), (16, 130, 256), (130, 65, 64), (300, 64, 96)]


@in_each_order
@in_both_layouts
@each("rows, outer, inner", LARGE)
def test_the_number_of_threads_changes_nothing(
    order: str, inner_first: bool, rows: int, outer: int, inner: int
) -> None:
    rng = np.random.default_rng(rows)
    x, weight, bias = noise(rng, rows, inner), noise(rng, outer, inner), noise(rng, outer)
    expected = by_hand(x, weight, bias, order, 128)
    for threads in (1, 2, 3, 5):
        ours = multiplied(x, weight, bias, order, 128, inner_first=inner_first, threads=threads, gaps=(0, 4))
        assert np.array_equal(ours, expected), threads


@in_each_order
@in_both_layouts
@each("rows", [9, 17])
def test_what_is_not_finite_stays_in_its_row_and_column(order: str, inner_first: bool, rows: int) -> None:
    rng = np.random.default_rng(0)
    x, weight = noise(rng, rows, 64), noise(rng, 70, 64)
    expected = multiplied(x, weight, None, order, 64, inner_first=inner_first)
    x[3, 5], weight[66, 7] = 0x7F80, 0xFF80
    ours = floats_of(multiplied(x, weight, None, order, 64, inner_first=inner_first))
    touched = np.zeros(ours.shape, bool)
    touched[3], touched[:, 66] = True, True
    assert not np.isfinite(ours[touched]).any()
    assert np.array_equal(ours[~touched], floats_of(expected)[~touched])


@in_each_order
@in_both_layouts
@each("rows", [2, 17])
def test_denormals_count_as_zero_as_the_processor_has_it_but_not_in_torchs_loop(
    order: str, inner_first: bool, rows: int
) -> None:
    x, weight = np.full((rows, 4), 0x0010, np.uint16), np.full((3, 4), 0x3F80, np.uint16)
    ours = multiplied(x, weight, None, order, 4, inner_first=inner_first)
    assert (ours == (0x0040 if order == "dots" else 0)).all()


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    x, weight, result = (np.zeros(shape, np.uint16) for shape in ((2, 4), (3, 4), (2, 3)))
    for arguments in (
        (x[0], weight, None, result, "pairs", 4),
        (x[:, ::2], weight[:, :2], None, result, "pairs", 2),
        (np.broadcast_to(x[0], (2, 4)), weight, None, result, "pairs", 4),
        (x, weight[0], None, result, "pairs", 4),
        (x[:, :2], weight[:, ::2], None, result, "pairs", 2),
        (x, np.broadcast_to(weight[0], (3, 4)), None, result, "pairs", 4),
        (x, weight[:2], None, result, "pairs", 4),
        (x[:, :2], weight, None, result, "pairs", 2),
        (x[:, :3], weight[:, :3], None, result, "pairs", 2),
        (x[:, :0], weight[:, :0], None, result, "pairs", 2),
        (x, weight, np.zeros(2, np.uint16), result, "pairs", 4),
        (x, weight, None, result[:1], "pairs", 4),
        (x, weight, None, result[0], "pairs", 4),
        (x, weight, None, result, "pairs", 3),
        (x, weight, None, result, "pairs", 0),
        (x, weight, None, result, "rows", 4),
    ):
        with pytest.raises(ValueError, match=r"must|be"):
            _core.kernels_multiply(*arguments, 1)  # type: ignore[arg-type]  # the arrays' types are right
    with pytest.raises(ValueError, match="for input and result"):
        _core.kernels_multiply(x, weight, None, result, "pairs", 4, 1, inner_first=True)
    with pytest.raises(ValueError, match="for input and result"):
        _core.kernels_multiply(x, np.ascontiguousarray(weight.T), None, result, "pairs", 4, 1)
    with pytest.raises(TypeError):  # a copy of it would be filled
        _core.kernels_multiply(x, weight, None, result.astype(np.int64), "pairs", 4, 1)
