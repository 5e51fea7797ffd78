"""The casts against torch's own, in every instruction set that the processor can run."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from conftest import run_script
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from habana_mp import _core, kernels

pytestmark = pytest.mark.processor

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

every_path = pytest.mark.parametrize("path", PATHS)
every_cast = pytest.mark.parametrize(("source", "target"), CASTS, ids=["-to-".join(pair) for pair in CASTS])
streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["cached", "streamed"])


def torch_bits(bits: Array, source: str, target: str) -> Array:
    """What torch makes of the bits of `source` values: bits of `target` values."""
    signed = bits.astype(BITS[source], copy=True).view(np.dtype(f"int{BITS[source].itemsize * 8}"))
    cast = torch.from_numpy(signed).view(TORCH[source]).to(TORCH[target])
    expected: Array = cast.view(INTEGERS[target]).numpy().view(BITS[target])
    return expected


def our_bits(bits: Array, source: str, target: str, path: str, *, threads: int = 1, stream: bool = False) -> Array:
    array = bits.astype(BITS[source], copy=False).view(DTYPES[source])
    ours: Array = _core.kernels_cast_with(array, DTYPES[target], None, threads, path, stream).view(BITS[target])
    return ours


def is_nan(bits: Array, dtype: str) -> npt.NDArray[np.bool_]:
    magnitude: Array = bits & BITS[dtype].type((1 << (BITS[dtype].itemsize * 8 - 1)) - 1)
    return np.asarray(magnitude > INFINITY[dtype])


def assert_same(ours: Array, expected: Array, dtype: str, inputs: Array | None = None) -> None:
    """Bit for bit, but that any NaN may stand for any other."""
    same = (ours == expected) | (is_nan(ours, dtype) & is_nan(expected, dtype))
    if same.all():
        return
    at = int(np.flatnonzero(~same)[0])
    what = "" if inputs is None else f" of {inputs[at]:#x}"
    raise AssertionError(f"element {at}{what}: {ours[at]:#x}, but torch gives {expected[at]:#x}")


def hard_bits() -> npt.NDArray[np.uint32]:
    """float32 bits of every sign and exponent with the mantissas around what rounding turns on."""
    mantissas = {0, 1, 2, 0x7FFFFF, 0x7FFFFE, 0x400000, 0x3FFFFF, 0x400001}
    for kept in range(23):  # a tie at every bit, which covers float16's denormals too
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
    # what surrounds float16's largest and smallest, and what rounds up to infinity in bfloat16
    edges = [0x477FE000, 0x477FEFFF, 0x477FF000, 0x477FFFFF, 0x47800000, 0x33000000, 0x33000001, 0x32FFFFFF]
    edges += [0x387FC000, 0x387FE000, 0x387FFFFF, 0x38800000, 0x7F7F0000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF]
    edges += [0x7F800000, 0x7F800001, 0x7FBFFFFF, 0x7FC00000, 0x7FFFFFFF, 0x00400000, 0x00008000, 0x00018000, 1]
    edge = np.array(edges, np.uint32)
    return np.concatenate([bits, edge, edge | np.uint32(0x80000000)])


@pytest.fixture
def denormals_flushed() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    yield
    torch.set_flush_denormal(False)


# --- values -----------------------------------------------------------------------------------------------------------


@every_path
@every_cast
def test_every_hard_value_becomes_what_torch_makes_of_it(path: str, source: str, target: str) -> None:
    bits = hard_bits() if source == "float32" else np.arange(65536, dtype=np.uint16)
    assert_same(our_bits(bits, source, target, path), torch_bits(bits, source, target), target, bits)


@every_path
@every_cast
def test_a_hard_value_alone_between_ordinary_ones_becomes_what_torch_makes_of_it(
    path: str, source: str, target: str
) -> None:
    # A vector of denormals alone may take another way than a vector with one in it.
    hard = hard_bits() if source == "float32" else np.arange(65536, dtype=np.uint16)
    one = np.array([1.5], np.float32).astype(DTYPES[source]).view(BITS[source])[0]
    bits = np.full(hard.size * 37, one, BITS[source])
    bits[::37] = hard
    assert_same(our_bits(bits, source, target, path), torch_bits(bits, source, target), target, bits)


@every_path
def test_denormals_are_kept_in_bfloat16(path: str) -> None:
    bits = np.array([0x00400000, 0x80400000, 0x00010000, 0x007FFFFF, 0x00008000, 0x00018000, 0], np.uint32)
    expected = np.array([0x0040, 0x8040, 0x0001, 0x0080, 0x0000, 0x0002, 0x0000], np.uint16)
    assert our_bits(bits, "float32", "bfloat16", path).tolist() == expected.tolist()


@every_path
@every_cast
def test_denormals_are_kept_where_the_program_flushes_them(path: str, source: str, target: str) -> None:
    # Not by the fixture: what torch gives must be known before.
    bits = hard_bits() if source == "float32" else np.arange(65536, dtype=np.uint16)
    expected = torch_bits(bits, source, target)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        ours = our_bits(bits, source, target, path)
        on_threads = our_bits(bits, source, target, path, threads=4, stream=True)
    finally:
        torch.set_flush_denormal(False)
    assert_same(ours, expected, target, bits)
    assert_same(on_threads, expected, target, bits)


def test_denormals_are_kept_by_the_public_functions_where_the_program_flushes_them(denormals_flushed: None) -> None:
    bits = np.full(1 << 20, 0x00400000, np.uint32)
    assert (kernels.to_bfloat16(bits.view(np.float32)).view(np.uint16) == 0x0040).all()
    assert (kernels.to_float32(np.full(100, 0x0040, np.uint16)).view(np.uint32) == 0x00400000).all()
    assert (kernels.to_float32(np.full(100, 1, np.uint16).view(np.float16)).view(np.uint32) == 0x33800000).all()


@every_path
@every_cast
@given(data=st.data())
def test_any_bits_become_what_torch_makes_of_them(path: str, source: str, target: str, data: st.DataObject) -> None:
    bits = data.draw(hnp.arrays(BITS[source], st.integers(0, 200)))
    assert_same(our_bits(bits, source, target, path), torch_bits(bits, source, target), target, bits)


@every_path
@every_cast
def test_random_bits_become_what_torch_makes_of_them(path: str, source: str, target: str) -> None:
    bits = np.random.default_rng(1).integers(0, 1 << 32, 1 << 20, np.uint32).astype(BITS[source])
    assert_same(our_bits(bits, source, target, path), torch_bits(bits, source, target), target, bits)


@every_path
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cast_to_the_same_type_copies_every_bit(path: str, dtype: str) -> None:
    bits = np.random.default_rng(2).integers(0, 1 << 32, 100_003, np.uint32).astype(BITS[dtype])
    assert np.array_equal(our_bits(bits, dtype, dtype, path, threads=2), bits)


# --- memory and threads -----------------------------------------------------------------------------------------------


@every_path
@every_cast
@streamed_or_not
def test_every_length_and_offset_is_cast_and_nothing_beside_it_is_touched(
    path: str, source: str, target: str, stream: bool
) -> None:
    size = BITS[target].itemsize
    bits = np.random.default_rng(3).integers(0, 1 << 32, 1200, np.uint32).astype(BITS[source])
    expected = torch_bits(bits, source, target)
    lengths = [*range(131), 255, 256, 257, 320, 511, 512, 513, 1024, 1100]
    for source_offset, target_offset in [(0, 0), (1, 0), (0, 1), (3, 5), (7, 31), (16, 32)]:
        for length in lengths:
            array = bits[source_offset : source_offset + length].view(DTYPES[source])
            memory = np.full((target_offset + length + 40) * size, 0xA5, np.uint8)
            out = memory.view(DTYPES[target])[target_offset : target_offset + length]
            _core.kernels_cast_with(array, DTYPES[target], out, 1, path, stream)
            assert_same(out.view(BITS[target]), expected[source_offset : source_offset + length], target)
            assert (memory[: target_offset * size] == 0xA5).all()
            assert (memory[(target_offset + length) * size :] == 0xA5).all()


@every_path
@every_cast
@streamed_or_not
def test_arrays_at_odd_addresses_are_cast(path: str, source: str, target: str, stream: bool) -> None:
    bits = np.random.default_rng(4).integers(0, 1 << 32, 40_000, np.uint32).astype(BITS[source])
    expected = torch_bits(bits, source, target)
    for length in (0, 1, 7, 33, 300, 40_000):
        given_bytes = bytearray(b"\0" + bits[:length].tobytes())
        array = np.frombuffer(given_bytes, DTYPES[source], length, offset=1)
        out = np.frombuffer(bytearray(length * BITS[target].itemsize + 1), DTYPES[target], length, offset=1)
        _core.kernels_cast_with(array, DTYPES[target], out, 2, path, stream)
        assert_same(out.copy().view(BITS[target]), expected[:length], target)


@every_path
@every_cast
@streamed_or_not
@pytest.mark.parametrize("threads", [1, 2, 4, 1000])
def test_the_number_of_threads_changes_nothing(path: str, source: str, target: str, stream: bool, threads: int) -> None:
    bits = np.random.default_rng(5).integers(0, 1 << 32, (1 << 18) + 77, np.uint32).astype(BITS[source])
    expected = torch_bits(bits, source, target)
    for length in (1 << 14, (1 << 14) + 1, (1 << 15) - 1, 1 << 15, 100_001, bits.size):
        ours = our_bits(bits[:length], source, target, path, threads=threads, stream=stream)
        assert_same(ours, expected[:length], target, bits)


@every_cast
def test_arrays_beyond_the_caches_are_cast(source: str, target: str) -> None:
    # The pattern's length shares no factor with a power of two: no two pieces of the array are alike.
    pattern = np.random.default_rng(6).integers(0, 1 << 32, 1_000_003, np.uint32).astype(BITS[source])
    expected = np.resize(torch_bits(pattern, source, target), (1 << 25) + 13)
    array = np.resize(pattern, (1 << 25) + 13).view(DTYPES[source])
    for threads in (1, 2):
        assert_same(FACES[target](array, threads=threads).view(BITS[target]), expected, target)


def test_bursts_of_casts_of_changing_size_never_mix_up_their_work() -> None:
    random = np.random.default_rng(7)
    bits = random.integers(0, 1 << 32, 1 << 18, np.uint32)
    expected = torch_bits(bits, "float32", "bfloat16")
    for round_number in range(2000):
        start, stop = sorted(random.integers(0, bits.size, 2).tolist())
        ours = our_bits(bits[start:stop], "float32", "bfloat16", PATHS[-1], threads=2 + round_number % 3)
        assert_same(ours, expected[start:stop], "bfloat16")


def test_several_threads_may_cast_at_once() -> None:
    bits = np.random.default_rng(8).integers(0, 1 << 32, 1 << 20, np.uint32)
    expected = torch_bits(bits, "float32", "float16")
    start = threading.Barrier(4)

    def cast_often(_: int) -> None:
        start.wait()
        for _ in range(50):
            ours = kernels.to_float16(bits.view(np.float32), threads=2).view(np.uint16)
            assert_same(ours, expected, "float16")

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(cast_often, range(4)))


# --- strides ----------------------------------------------------------------------------------------------------------


def random_bits(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 1 << 32, shape, np.uint32).astype(BITS[dtype])


def assert_strided_cast(array: Array, out: Array, source: str, target: str, path: str, threads: int = 1) -> None:
    """`array` and `out` are bits, in their strides."""
    expected = torch_bits(np.ascontiguousarray(array), source, target)
    given = array.view(DTYPES[source]), DTYPES[target], out.view(DTYPES[target])
    for stream in (False, True):
        out[...] = 0xA5A5
        _core.kernels_cast_with(*given, threads, path, stream)
        assert_same(np.ascontiguousarray(out).ravel(), expected.ravel(), target)


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
@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_any_strides_become_what_torch_makes_of_them(
    path: str, source: str, target: str, layout: str
) -> None:
    shape, view, out_view = LAYOUTS[layout]
    array = view(random_bits(shape, source))
    memory = np.zeros(shape, BITS[target])
    assert_strided_cast(array, out_view(memory), source, target, path)
    assert_strided_cast(array, out_view(memory), source, target, path, threads=3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_strided_copy_keeps_every_bit(dtype: str, layout: str) -> None:
    shape, view, out_view = LAYOUTS[layout]
    array, out = view(random_bits(shape, dtype)), out_view(np.zeros(shape, BITS[dtype]))
    _core.kernels_cast_with(array.view(DTYPES[dtype]), DTYPES[dtype], out.view(DTYPES[dtype]), 2, PATHS[-1], False)
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
    _core.kernels_cast_with(
        array.view(DTYPES[source]), DTYPES[target], out_view(out_memory).view(DTYPES[target]), 2, path, True
    )
    assert_same(out_memory.ravel(), expected.ravel(), target)


def test_large_transposed_arrays_are_cast_on_threads() -> None:
    array = np.random.default_rng(10).standard_normal((3000, 2000), dtype=np.float32)
    expected = torch.from_numpy(array).to(torch.bfloat16).T.contiguous().view(torch.int16).numpy()
    for threads in (1, 2, 3):
        assert np.array_equal(kernels.to_bfloat16(array.T, threads=threads).view(np.int16), expected)


# --- many at once -----------------------------------------------------------------------------------------------------


@every_path
@pytest.mark.parametrize("threads", [1, 2, 5])
@streamed_or_not
def test_many_arrays_at_once_become_what_each_would_alone(path: str, threads: int, stream: bool) -> None:
    random = np.random.default_rng(11)
    names = list(DTYPES)
    lengths = [0, 1, 31, 70_000, 5, 0, 100_001, 1 << 17, *random.integers(0, 3000, 60).tolist()]
    sources, outs, expected = [], [], []
    for number, length in enumerate(lengths):
        source, target = names[number % 3], names[number // 3 % 3]
        bits = random_bits((length,), source, seed=number)
        out = np.zeros(length, BITS[target])
        if number % 5 == 4:  # some of them transposed
            bits, out = np.resize(bits, (7, length)).T, np.zeros((length, 7), BITS[target])
        sources.append(bits.view(DTYPES[source]))
        outs.append(out.view(DTYPES[target]))
        expected.append((torch_bits(np.ascontiguousarray(bits), source, target), target))
    _core.kernels_cast_many_with(sources, outs, threads, path, stream)
    for out, (bits, target) in zip(outs, expected, strict=True):
        assert_same(np.ascontiguousarray(out).view(BITS[target]).ravel(), bits.ravel(), target)


def test_cast_many_takes_lists_and_tuples_and_none_at_all() -> None:
    arrays = [np.full((3, size), size, np.float32) for size in range(1, 200)]
    outs = [np.empty((3, size), np.float16) for size in range(1, 200)]
    kernels.cast_many(arrays, tuple(outs), threads=2)
    assert all((out == size).all() for size, out in enumerate(outs, 1))
    kernels.cast_many([], [])


def test_cast_many_casts_a_large_model_on_threads() -> None:
    arrays = [
        np.random.default_rng(size).standard_normal(size, dtype=np.float32) for size in (1 << 22, 7, 1 << 23, 999)
    ]
    outs = [np.empty(array.size, ml_dtypes.bfloat16) for array in arrays]
    for threads in (1, 2, None):
        for out in outs:
            out[...] = 0
        kernels.cast_many(arrays, outs, threads)
        for array, out in zip(arrays, outs, strict=True):
            assert_same(out.view(np.uint16), torch_bits(array.view(np.uint32), "float32", "bfloat16"), "bfloat16")


# --- stochastic rounding ----------------------------------------------------------------------------------------------


def philox(counters: Array, seed: int) -> Array:
    """Philox4x32-10: four words for each counter, by the book."""
    low = np.uint64(0xFFFFFFFF)
    a, b = counters & low, counters >> np.uint64(32)
    c, d = np.zeros_like(a), np.zeros_like(a)
    key, other_key = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b = second >> np.uint64(32) ^ b ^ np.uint64(key), second & low
        c, d = first >> np.uint64(32) ^ d ^ np.uint64(other_key), first & low
        key, other_key = (key + 0x9E3779B9) & 0xFFFFFFFF, (other_key + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([a, b, c, d])


def rounded_by_the_book(bits: Array, seed: int) -> Array:
    words = philox(np.arange(-(-bits.size // 256) * 32, dtype=np.uint64), seed).reshape(4, -1, 32)
    halves = np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], axis=1)
    random = halves.transpose(2, 0, 1, 3).ravel()[: bits.size]
    rounded = ((bits + random) >> np.uint64(16)).astype(np.uint16)
    return np.where(is_nan(bits, "float32"), np.uint16(0x7FC0), rounded)


def stochastic_bits(bits: Array, seed: int, path: str | None = None, threads: int = 1) -> Array:
    bfloat16 = DTYPES["bfloat16"]
    ours = _core.kernels_cast_stochastically(bits.view(np.float32), bfloat16, seed, None, threads, path)
    return ours.view(np.uint16)


def test_the_random_numbers_are_those_that_the_authors_of_philox_give() -> None:
    assert philox(np.zeros(1, np.uint64), 0).ravel().tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@every_path
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("seed", [0, 1, 0x9E3779B97F4A7C15, 2**64 - 1])
def test_stochastic_rounding_gives_the_same_bits_on_every_path_and_any_number_of_threads(
    path: str, threads: int, seed: int
) -> None:
    bits = np.concatenate([hard_bits(), random_bits((100_003,), "float32")])
    expected = rounded_by_the_book(bits, seed)
    for length in (0, 1, 255, 256, 257, bits.size):
        ours = stochastic_bits(bits[:length], seed, path, threads)
        assert_same(ours, expected[:length], "bfloat16", bits)


@every_path
def test_what_bfloat16_can_hold_is_never_changed_by_stochastic_rounding(path: str) -> None:
    every = np.arange(65536, dtype=np.uint32)
    for seed in range(20):
        assert_same(stochastic_bits(every << 16, seed, path), every.astype(np.uint16), "bfloat16", every)


@pytest.mark.parametrize("value", [1 + 2**-9, -(1 + 3 * 2**-11), 1e-40, 3.14159, 1 + 2**-22])
def test_stochastic_rounding_gives_both_neighbours_and_keeps_the_mean(value: float) -> None:
    count = 1 << 20
    array = np.full(count, value, np.float32)
    low = np.uint32(array.view(np.uint32)[0] & 0xFFFF0000)
    below, above = np.array([low, low + 0x10000], np.uint32).view(np.float32).astype(np.float64)
    chance = (float(array[0]) - below) / (above - below)
    for seed in range(3):
        rounded = kernels.to_bfloat16(array, seed=seed).astype(np.float64)
        assert set(np.unique(rounded)) <= {below, above}
        deviation = np.sqrt(chance * (1 - chance) / count)
        assert abs((rounded == above).mean() - chance) < 5 * deviation


def test_roundings_of_neighbours_places_and_seeds_have_nothing_to_do_with_each_other() -> None:
    halves = np.full(1 << 20, 1 + 2**-8, np.float32)  # half way: each a toss of a coin
    up = np.stack([kernels.to_bfloat16(halves, seed=seed) > 1 for seed in (0, 1, 2**32)]).astype(np.float64) - 0.5
    for one, other in [(up[0], up[1]), (up[0], up[2]), (up[1], up[2])]:
        assert abs((one * other).mean()) < 5 * 0.25 / np.sqrt(one.size)
    for distance in (1, 2, 16, 31, 32, 64, 128, 256, 1024):
        assert abs((up[0][distance:] * up[0][:-distance]).mean()) < 5 * 0.25 / np.sqrt(up[0].size - distance)


def test_a_sum_of_small_updates_is_kept_by_stochastic_rounding_alone() -> None:
    weights = np.ones(10_000, np.float32)
    for step in range(100):
        weights = kernels.to_float32(kernels.to_bfloat16(weights + np.float32(2**-10), seed=step))
    assert weights.mean() == pytest.approx(1 + 100 * 2**-10, rel=2e-3)


def test_stochastic_rounding_counts_places_in_the_array_whatever_its_strides() -> None:
    array = np.random.default_rng(12).standard_normal((300, 40), dtype=np.float32)
    expected = kernels.to_bfloat16(array, seed=5)
    other_way = np.asfortranarray(array)
    out = np.zeros((40, 300), DTYPES["bfloat16"]).T
    assert np.array_equal(kernels.to_bfloat16(other_way, seed=5), expected)
    assert kernels.to_bfloat16(other_way, out, 2, seed=5) is out
    assert np.array_equal(out, expected)


# --- processes --------------------------------------------------------------------------------------------------------


def run_python(program: str, kernels_variable: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "HABANA_MP_KERNELS"}
    if kernels_variable is not None:
        environment["HABANA_MP_KERNELS"] = kernels_variable
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("before", ["hmp.convert()", "pass"])
def test_a_child_forked_after_torch_used_its_threads_does_without_them(before: str) -> None:
    program = f"""
        import os, signal
        import numpy as np, torch
        from habana_mp import hmp, kernels

        torch.set_num_threads(2)
        {before}
        array = np.arange(1 << 21, dtype=np.float32)
        expected = kernels.to_bfloat16(array, threads=2).tobytes()
        torch.ones(1 << 22).exp()
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            hmp.convert()
            os._exit(0 if kernels.to_bfloat16(array, threads=2).tobytes() == expected else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print("done")
    """
    result = run_python(program)
    assert result.stdout.strip() == "done", result.stderr


def test_a_child_forked_after_the_threads_were_used_casts_on_threads_of_its_own() -> None:
    program = """
        import os, signal, sys, threading
        import numpy as np
        from habana_mp import kernels

        array = np.arange(1 << 21, dtype=np.float32)
        expected = kernels.to_bfloat16(array, threads=2).tobytes()
        stop = threading.Event()

        def keep_casting():
            while not stop.is_set():
                kernels.to_bfloat16(array, threads=2)

        busy = threading.Thread(target=keep_casting)
        busy.start()
        def cast_as_a_child(threads):
            signal.alarm(30)
            before = len(os.listdir("/proc/self/task"))
            for _ in range(5):
                if kernels.to_bfloat16(array, threads=threads).tobytes() != expected:
                    os._exit(1)
            if len(os.listdir("/proc/self/task")) != before + threads - 1:
                os._exit(2)

        def ended_well(child):
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

        for attempt in range(20):
            child = os.fork()
            if child == 0:
                cast_as_a_child(2)
                grandchild = os.fork()
                if grandchild == 0:
                    cast_as_a_child(3)
                    os._exit(0)
                os._exit(0 if ended_well(grandchild) else 3)
            assert ended_well(child)
            assert kernels.to_bfloat16(array, threads=2).tobytes() == expected

        # the whole way out of an interpreter, with and without threads of its own
        for threads in (1, 2):
            child = os.fork()
            if child == 0:
                if threads > 1:
                    cast_as_a_child(threads)
                signal.alarm(30)
                sys.exit(0)
            assert ended_well(child)
        stop.set()
        busy.join()
        print("done")
    """
    done = run_python(program)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


@pytest.mark.parametrize(
    "ending", ["", "sys.exit(0)", "os._exit(0)", "threading.Thread(target=cast, daemon=True).start()"]
)
def test_a_program_that_has_cast_on_threads_ends_cleanly(ending: str) -> None:
    program = f"""
import os, sys, threading
import numpy as np
from habana_mp import kernels

array = np.ones(1 << 22, np.float32)

def cast():
    while True:
        kernels.to_float16(array, threads=4)

kernels.to_float16(array, threads=4)
{ending}
"""
    done = run_python(program)
    assert (done.returncode, done.stderr) == (0, "")


@every_path
def test_the_environment_variable_names_the_instruction_set(path: str) -> None:
    done = run_python("from habana_mp import kernels; print(kernels.path())", path)
    assert done.stdout.strip() == path, done.stderr


@pytest.mark.parametrize("variable", [None, ""])
def test_without_the_environment_variable_the_fastest_instruction_set_is_used(variable: str | None) -> None:
    done = run_python("from habana_mp import kernels; print(kernels.path())", variable)
    assert done.stdout.strip() == PATHS[-1], done.stderr


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("sse9", "is not the name of an instruction set"),
        ("AVX2", "is not the name of an instruction set"),
        (next(name for name in ("neon", "avx2") if name not in PATHS), "this processor cannot run"),
    ],
)
def test_an_instruction_set_that_cannot_be_used_is_an_error_that_says_which_can(value: str, reason: str) -> None:
    done = run_python("from habana_mp import kernels", value)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "`HABANA_MP_KERNELS`" in last
    assert f"got '{value}'" in last
    assert reason in last
    assert ", ".join(PATHS) in last


# --- the NumPy face ---------------------------------------------------------------------------------------------------


def test_path_is_one_of_those_the_processor_can_run() -> None:
    assert kernels.path() in PATHS
    assert PATHS[0] == "scalar"


@every_cast
def test_the_public_functions_give_what_torch_gives(source: str, target: str) -> None:
    bits = np.random.default_rng(9).integers(0, 1 << 32, 5000, np.uint32).astype(BITS[source])
    ours = FACES[target](bits.view(DTYPES[source]))
    assert ours.dtype == DTYPES[target]
    assert_same(ours.view(BITS[target]), torch_bits(bits, source, target), target, bits)


def test_uint16_counts_as_the_bits_of_bfloat16() -> None:
    bits = np.array([0x3F80, 0xC000, 0x7F80], np.uint16)
    assert kernels.to_float32(bits).tolist() == [1.0, -2.0, np.inf]
    out = np.empty(3, np.uint16)
    assert kernels.to_bfloat16(np.array([1.0, -2.0, np.inf], np.float32), out) is out
    assert out.tolist() == bits.tolist()


def test_without_ml_dtypes_bfloat16_is_given_as_its_bits() -> None:
    program = """
        import sys
        sys.modules["ml_dtypes"] = None
        import numpy as np
        from habana_mp import kernels
        bits = kernels.to_bfloat16(np.array([1.0, -2.0], np.float32))
        print(bits.dtype, bits.tolist(), kernels.to_float32(bits).tolist())
    """
    done = run_python(program)
    assert done.stdout.strip() == "uint16 [16256, 49152] [1.0, -2.0]", done.stderr


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 5)])
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


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array.T,
        lambda array: array[::2, 1::3],
        lambda array: array[::-1, ::-1],
        lambda array: np.broadcast_to(array[0], (4, 12)),
        np.asfortranarray,
    ],
    ids=["transposed", "strided", "reversed", "broadcast", "fortran"],
)
@every_cast
def test_an_array_of_any_strides_is_cast(view: Any, source: str, target: str) -> None:
    array = view(np.arange(120, dtype=np.float32).reshape(10, 12).astype(DTYPES[source]))
    ours = FACES[target](array)
    assert ours.flags.c_contiguous
    assert np.array_equal(ours.astype(np.float32), array.astype(np.float32))
    out = np.zeros(array.shape, DTYPES[target])
    FACES[target](array, out)
    assert np.array_equal(out.astype(np.float32), array.astype(np.float32))


def test_a_read_only_array_is_cast() -> None:
    array = np.ones(10, np.float32)
    array.flags.writeable = False
    assert kernels.to_float16(array).tolist() == [1.0] * 10


@pytest.mark.parametrize("threads", [None, 1, 2, np.int64(2), 10**30])
def test_any_number_of_threads_may_be_asked_for(threads: Any) -> None:
    assert kernels.to_float16(np.ones(1 << 20, np.float32), threads=threads).sum(dtype=np.float64) == 1 << 20


# --- errors -----------------------------------------------------------------------------------------------------------

F32 = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        ([1.0], "`array` must be a NumPy array of float32, float16 or bfloat16 .*, got list"),
        (None, "`array` must be a NumPy array .*, got NoneType"),
        (np.float32(1), "`array` must be a NumPy array .*, got float32"),
        (np.ones(3), "`array` must be of float32, float16 or bfloat16 .*, got an array of float64"),
        (np.ones(3, np.int32), "`array` must be of .*, got an array of int32"),
        (np.ones(3, np.int16), "`array` must be of .*, got an array of int16"),
        (np.ones(3, object), "`array` must be of .*, got an array of object"),
        (np.ones(3, "V2"), r"`array` must be of .*, got an array of \|V2"),
        (np.ones(3, np.dtype(np.float32).newbyteorder()), "native byte order, got an array of [<>]f4"),
        (np.ones(3, np.dtype(np.float16).newbyteorder()), "native byte order, got an array of [<>]f2"),
    ],
)
def test_an_array_of_another_kind_is_an_error_that_says_what_came(array: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        kernels.to_bfloat16(array)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        ([1.0], TypeError, "`out` must be a NumPy array of float16 or None, got list"),
        (
            np.ones((2, 3), np.float32),
            TypeError,
            "`out` must be an array of float16 in native byte order, got an array of float32",
        ),
        (
            np.ones((2, 3), np.uint16),
            TypeError,
            "`out` must be an array of float16 in native byte order, got an array of uint16",
        ),
        (np.ones((2, 3), np.dtype(np.float16).newbyteorder()), TypeError, "native byte order, got an array of [<>]f2"),
        (
            np.ones((3, 2), np.float16),
            ValueError,
            r"`out` must have the shape of `array`, \(2, 3\), got \(3, 2\)",
        ),
        (np.ones(6, np.float16), ValueError, r"`out` must have the shape of `array`, \(2, 3\), got \(6,\)"),
        (
            np.lib.stride_tricks.as_strided(np.ones(3, np.float16), (2, 3), (0, 2)),
            ValueError,
            r"`out` must not overlap itself, got an array of shape \(2, 3\) with strides \(0, 2\)",
        ),
        (np.broadcast_to(np.float16(1), (2, 3)), ValueError, "`out` must be writeable, got a read-only"),
        (np.frombuffer(bytes(12), np.float16).reshape(2, 3), ValueError, "`out` must be writeable, got a read-only"),
    ],
)
def test_an_unfit_out_is_an_error_that_says_what_came(out: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        kernels.to_float16(F32, out)


def test_an_out_of_the_wrong_type_for_bfloat16_is_an_error_that_names_both_right_ones() -> None:
    with pytest.raises(TypeError, match=r"bfloat16 \(ml_dtypes.bfloat16, or its bits as uint16\) in .* of float16"):
        kernels.to_bfloat16(F32, np.ones((2, 3), np.float16))


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


@pytest.mark.parametrize(
    ("array", "seed", "error", "message"),
    [
        (F32, -1, ValueError, r"`seed` must be from 0 to 2\*\*64 - 1, got -1"),
        (F32, 2**64, ValueError, r"`seed` must be from 0 to 2\*\*64 - 1, got 18446744073709551616"),
        (F32, 1.5, TypeError, "`seed` must be an int or None, got float"),
        (F32, True, TypeError, "`seed` must be an int or None, got bool"),
        (F32.astype(np.float16), 1, TypeError, "`array` must be of float32 where a `seed` is given, got .* float16"),
    ],
)
def test_what_cannot_be_rounded_stochastically_is_an_error(
    array: Any, seed: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        kernels.to_bfloat16(array, seed=seed)


@pytest.mark.parametrize(
    ("sources", "outs", "error", "message"),
    [
        (F32, [F32], TypeError, "`sources` must be a list or a tuple of NumPy arrays, got ndarray"),
        ([F32], None, TypeError, "`outs` must be a list or a tuple of NumPy arrays, got NoneType"),
        ([F32], [], ValueError, "`outs` must have as many arrays as `sources`, 1, got 0"),
        ([F32, 1.0], [F32, F32], TypeError, r"`sources\[1\]` must be a NumPy array .*, got float"),
        ([F32], [np.ones((2, 3))], TypeError, r"`outs\[0\]` must be of float32.*, got an array of float64"),
        (
            [F32],
            [np.ones((3, 2), np.float16)],
            ValueError,
            r"`outs\[0\]` must have the shape of `sources\[0\]`, \(2, 3\)",
        ),
        ([F32], [F32], ValueError, r"`outs\[0\]` must not overlap `sources\[0\]`"),
        (
            [F32, F32],
            [F32.astype(np.float16), np.broadcast_to(np.float16(1), (2, 3))],
            ValueError,
            r"`outs\[1\]` must be writeable, got a read-only array",
        ),
    ],
)
def test_unfit_lists_of_arrays_are_an_error_that_says_which_one(
    sources: Any, outs: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        kernels.cast_many(sources, outs)


def test_an_out_among_many_that_overlaps_any_other_array_is_an_error() -> None:
    memory = np.zeros(100, np.float32)
    half = memory.view(np.float16)
    other = np.ones(10, np.float32)
    with pytest.raises(ValueError, match=r"`outs\[1\]` must not overlap `sources\[0\]`, got arrays that share memory"):
        kernels.cast_many([memory[:10], other], [np.empty(10, np.float16), half[15:25]])
    with pytest.raises(ValueError, match=r"`outs\[.\]` must not overlap `outs\[.\]`"):
        kernels.cast_many([other, other], [half[:10], half[9:19]])
    kernels.cast_many([other, other, memory[50:60]], [half[:10], half[10:20], half[20:30]])
    assert half[:30].tolist() == [1.0] * 20 + [0.0] * 10


@pytest.mark.parametrize(
    ("threads", "error", "message"),
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


def test_an_end_of_memory_is_called_so() -> None:
    done = run_script("""
import resource, numpy
from habana_mp import kernels
uneven = numpy.empty(2**26, numpy.float32)[::2]  # wants a copy
out = numpy.empty(2**25, numpy.uint16)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**24, used + 2**24))
try:
    kernels.to_bfloat16(uneven, out=out, seed=1)
except MemoryError:
    print("MemoryError")
""")
    assert done.stdout.strip() == "MemoryError", done.stderr
