"""Casts of arrays with strides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from habana_mp import _core
from helpers.arrays import (
    BITS,
    CASTS,
    DTYPES,
    PATHS,
    Array,
    assert_same_bits,
    every_cast,
    every_path,
    random_bits,
    torch_bits,
)
from helpers.each import each


def assert_strided_cast(array: Array, out: Array, source: str, target: str, path: str, threads: int = 1) -> None:
    """`array` and `out` are bits, in their strides."""
    expected = torch_bits(np.ascontiguousarray(array), source, target)
    given = array.view(DTYPES[source]), DTYPES[target], out.view(DTYPES[target])
    out[...] = 0xA5A5
    _core.kernels_cast(*given, threads, path)
    assert_same_bits(np.ascontiguousarray(out).ravel(), expected.ravel(), target)


LAYOUTS: dict[str, tuple[tuple[int, ...], Callable[[Array], Array], Callable[[Array], Array]]] = {
    "rows": ((37, 300), lambda x: x[:, 7:280], lambda y: y[:, 1:274]),
    "short rows": ((500, 11), lambda x: x[:, :3], lambda y: y[:, 5:8]),
    "long rows": ((3, 20_000), lambda x: x[:, 1:], lambda y: y[:, :-1]),
    "transposed": ((130, 203), lambda x: x.T, lambda y: y.reshape(203, 130)),
    "transposed into rows": ((130, 203), lambda x: x.T[:190, :100], lambda y: y.reshape(203, 130)[9:199, :100]),
    "out transposed": ((130, 203), lambda x: x, lambda y: y.reshape(203, 130).T),
    "few columns": ((3, 5000), lambda x: x.T, lambda y: y.reshape(5000, 3)),
    "few rows": ((5000, 3), lambda x: x.T, lambda y: y.reshape(3, 5000)),
    "channels last": ((2, 9, 17, 70), lambda x: x.transpose(0, 3, 1, 2), lambda y: y.reshape(2, 70, 9, 17)),
    "to channels last": ((2, 70, 9, 17), lambda x: x, lambda y: y.reshape(2, 9, 17, 70).transpose(0, 3, 1, 2)),
    "both channels last": ((2, 9, 17, 70), lambda x: x.transpose(0, 3, 1, 2), lambda y: y.transpose(0, 3, 1, 2)),
    "backwards": ((50, 60), lambda x: x[::-1, ::-1], lambda y: y),
    "out backwards": ((50, 60), lambda x: x, lambda y: y[::-1, ::-1]),
    "both backwards": ((50, 60), lambda x: x[::-1, ::-1], lambda y: y[::-1, ::-1]),
    "every other": ((50, 1200), lambda x: x[::2, ::2], lambda y: y[1::2, 1::2]),
    "broadcast": ((40, 60), lambda x: np.broadcast_to(x[0], (40, 60)), lambda y: y),
    "broadcast columns": ((40, 60), lambda x: np.broadcast_to(x[:, :1], (40, 60)), lambda y: y),
    "six axes": ((3, 4, 5, 6, 7, 2), lambda x: x.transpose(5, 1, 3, 0, 2, 4), lambda y: y.reshape(2, 4, 6, 3, 5, 7)),
}  # fmt: skip


@every_path
@every_cast
@each("layout", LAYOUTS, parts=7)
def test_arrays_of_any_strides_become_what_torch_makes_of_them(
    path: str, source: str, target: str, layout: str
) -> None:
    shape, view, out_view = LAYOUTS[layout]
    array = view(random_bits(shape, source))
    memory = np.zeros(shape, BITS[target])
    assert_strided_cast(array, out_view(memory), source, target, path)
    assert_strided_cast(array, out_view(memory), source, target, path, threads=3)


@each("dtype", DTYPES)
@each("layout", LAYOUTS)
def test_a_strided_copy_keeps_every_bit(dtype: str, layout: str) -> None:
    shape, view, out_view = LAYOUTS[layout]
    array, out = view(random_bits(shape, dtype)), out_view(np.zeros(shape, BITS[dtype]))
    _core.kernels_cast(array.view(DTYPES[dtype]), DTYPES[dtype], out.view(DTYPES[dtype]), 2, PATHS[-1])
    assert np.array_equal(out, array)


@given(data=st.data())
def test_random_views_are_cast_and_nothing_beside_them_is_touched(data: st.DataObject) -> None:
    source, target = data.draw(st.sampled_from(CASTS))
    path = data.draw(st.sampled_from(PATHS))
    shape = tuple(data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5)))
    rank = len(shape)

    def strided(dtype: str) -> tuple[Array, Callable[[Array], Array]]:
        """Memory, and how to see an array of that shape in it: in any order of axes, with steps and backwards."""
        order = data.draw(st.permutations(range(rank)))
        steps = data.draw(st.lists(st.sampled_from([1, 1, 2, -1, -3]), min_size=rank, max_size=rank))
        memory = random_bits(tuple(shape[axis] * abs(steps[axis]) for axis in order), dtype)
        return memory, lambda x: x.transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)]

    memory, view = strided(source)
    out_memory, out_view = strided(target)
    array, expected = view(memory), out_memory.copy()
    out_view(expected)[...] = torch_bits(np.ascontiguousarray(array), source, target)
    _core.kernels_cast(array.view(DTYPES[source]), DTYPES[target], out_view(out_memory).view(DTYPES[target]), 2, path)
    assert_same_bits(out_memory.ravel(), expected.ravel(), target)
