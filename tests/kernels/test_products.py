"""Our kernels' products with a weight, beside a plain loop of the same sums: in the same order, so the same bits."""

from __future__ import annotations

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


def multiplied(
    x: Bits, weight: Bits, bias: Bits | None, order: str, block: int, *, threads: int = 1, step: int | None = None
) -> Bits:
    """With memory around the result that must stay what it is, and the input's rows that far apart."""
    rows, outer = x.shape[0], weight.shape[0]
    apart = np.full((rows, step or x.shape[1]), 0x7FC0, np.uint16)  # what is read in between shows as NaN
    apart[:, : x.shape[1]] = x
    memory = np.full(rows * outer + 64, 0x1234, np.uint16)
    result = memory[32 : 32 + rows * outer].reshape(rows, outer)
    arranged = _core.kernels_arrange(weight, threads)
    _core.kernels_multiply(apart[:, : x.shape[1]], arranged, bias, result, order, block, threads)
    assert (memory[:32] == 0x1234).all()
    assert (memory[-32:] == 0x1234).all()
    return result


@in_each_order
@given(
    rows=st.integers(1, 15),
    outer=st.integers(1, 140),
    pairs=st.integers(1, 140),
    block=st.integers(1, 70),
    has_bias=st.booleans(),
    gap=st.integers(0, 9),
    seed=st.integers(0, 1 << 20),
)
def test_any_shape_gives_the_bits_of_a_plain_loop(
    order: str, rows: int, outer: int, pairs: int, block: int, has_bias: bool, gap: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, weight = noise(rng, rows, 2 * pairs), noise(rng, outer, 2 * pairs)
    bias = noise(rng, outer) if has_bias else None
    ours = multiplied(x, weight, bias, order, 2 * block, step=2 * pairs + gap)
    assert np.array_equal(ours, by_hand(x, weight, bias, order, 2 * block))


@in_each_order
@each("rows", [1, 2, 6, 7, 65, 66, 67, 133, 200], parts=2)
@each("outer", [64, 100, 192])
def test_many_rows_give_what_each_would_alone(order: str, rows: int, outer: int) -> None:
    rng = np.random.default_rng(rows)
    x, weight, bias = noise(rng, rows, 160), noise(rng, outer, 160), noise(rng, outer)
    for block in (160, 64):
        together = multiplied(x, weight, bias, order, block)
        alone = np.concatenate([multiplied(row[None], weight, bias, order, block) for row in x])
        assert np.array_equal(together, alone)


@in_each_order
@each("threads", [2, 3, 5])
@each("rows, outer, inner", [(1, 1000, 1200), (97, 130, 512), (300, 64, 256), (5, 700, 514)])
def test_the_number_of_threads_changes_nothing(order: str, threads: int, rows: int, outer: int, inner: int) -> None:
    rng = np.random.default_rng(threads)
    x, weight = noise(rng, rows, inner), noise(rng, outer, inner)
    for block in (inner, 128):
        one = multiplied(x, weight, None, order, block)
        assert np.array_equal(multiplied(x, weight, None, order, block, threads=threads), one)


@in_each_order
def test_what_is_not_finite_stays_in_its_row_and_column(order: str) -> None:
    rng = np.random.default_rng(0)
    x, weight = noise(rng, 9, 64), noise(rng, 70, 64)
    expected = multiplied(x, weight, None, order, 64)
    x[3, 5], weight[66, 7] = 0x7F80, 0xFF80
    ours = floats_of(multiplied(x, weight, None, order, 64))
    touched = np.zeros(ours.shape, bool)
    touched[3], touched[:, 66] = True, True
    assert not np.isfinite(ours[touched]).any()
    assert np.array_equal(ours[~touched], floats_of(expected)[~touched])


@in_each_order
def test_denormals_count_as_zero_as_the_processor_has_it_but_not_in_torchs_loop(order: str) -> None:
    x, weight = np.full((2, 4), 0x0010, np.uint16), np.full((3, 4), 0x3F80, np.uint16)
    assert (multiplied(x, weight, None, order, 4) == (0x0040 if order == "dots" else 0)).all()


@each("outer", [1, 16, 63, 64, 65, 200])
@each("threads", [1, 3])
def test_an_arranged_weight_holds_each_value_once(outer: int, threads: int) -> None:
    inner = 258
    weight = np.arange(outer * inner, dtype=np.uint32).astype(np.uint16).reshape(outer, inner)
    expected = [
        panel.reshape(panel.shape[0], inner // 2, 2).transpose(1, 0, 2).ravel()
        for panel in (weight[first : first + 64] for first in range(0, outer, 64))
    ]
    assert np.array_equal(_core.kernels_arrange(weight, threads), np.concatenate(expected))
    turned = np.ascontiguousarray(weight.T)
    assert np.array_equal(_core.kernels_arrange(turned, threads, inner_first=True), np.concatenate(expected))


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    x, weight = np.zeros((2, 4), np.uint16), np.zeros((3, 4), np.uint16)
    arranged, result = _core.kernels_arrange(weight, 1), np.zeros((2, 3), np.uint16)
    for arguments in (
        (x[:, :2], arranged, None, result, "pairs", 4),
        (x[:, ::2], arranged, None, result, "pairs", 4),
        (x, arranged[:4], None, result, "pairs", 4),
        (x, arranged, np.zeros(2, np.uint16), result, "pairs", 4),
        (x, arranged, None, result[:1], "pairs", 4),
        (x, arranged, None, result, "pairs", 3),
        (x, arranged, None, result, "pairs", 0),
        (x, arranged, None, result, "rows", 4),
    ):
        with pytest.raises(ValueError, match=r"must|be"):
            _core.kernels_multiply(*arguments, 1)  # type: ignore[arg-type]  # the arrays' types are right
    with pytest.raises(ValueError, match="even"):
        _core.kernels_arrange(np.zeros((2, 3), np.uint16), 1)
    with pytest.raises(ValueError, match="even"):
        _core.kernels_arrange(np.zeros((3, 2), np.uint16), 1, inner_first=True)
