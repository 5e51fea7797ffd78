"""The casts against torch's own, in every instruction set that the processor can run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from habana_mp import _core, kernels
from helpers.arrays import (
    BITS,
    CASTS,
    DTYPES,
    PATHS,
    assert_same_bits,
    every_cast,
    every_path,
    hard_bits,
    our_bits,
    torch_bits,
)
from helpers.each import each


@pytest.fixture
def denormals_flushed() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    yield
    torch.set_flush_denormal(False)


@every_path
@every_cast
def test_every_hard_value_becomes_what_torch_makes_of_it(path: str, source: str, target: str) -> None:
    bits = hard_bits() if source == "float32" else np.arange(65536, dtype=np.uint16)
    assert_same_bits(our_bits(bits, source, target, path), torch_bits(bits, source, target), target, bits)


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
    assert_same_bits(our_bits(bits, source, target, path), torch_bits(bits, source, target), target, bits)


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
        on_threads = our_bits(bits, source, target, path, threads=4)
    finally:
        torch.set_flush_denormal(False)
    assert_same_bits(ours, expected, target, bits)
    assert_same_bits(on_threads, expected, target, bits)


def test_denormals_are_kept_by_the_public_functions_where_the_program_flushes_them(denormals_flushed: None) -> None:
    bits = np.full(1 << 20, 0x00400000, np.uint32)
    assert (kernels.to_bfloat16(bits.view(np.float32)).view(np.uint16) == 0x0040).all()
    assert (kernels.to_float32(np.full(100, 0x0040, np.uint16)).view(np.uint32) == 0x00400000).all()
    assert (kernels.to_float32(np.full(100, 1, np.uint16).view(np.float16)).view(np.uint32) == 0x33800000).all()


@settings(max_examples=300)
@given(path=st.sampled_from(PATHS), cast=st.sampled_from(CASTS), data=st.data())
def test_any_bits_become_what_torch_makes_of_them(path: str, cast: tuple[str, str], data: st.DataObject) -> None:
    source, target = cast
    bits = data.draw(hnp.arrays(BITS[source], st.integers(0, 200)))
    assert_same_bits(our_bits(bits, source, target, path), torch_bits(bits, source, target), target, bits)


@every_path
@each("dtype", DTYPES)
def test_a_cast_to_the_same_type_copies_every_bit(path: str, dtype: str) -> None:
    bits = np.random.default_rng(2).integers(0, 1 << 32, 100_003, np.uint32).astype(BITS[dtype])
    assert np.array_equal(our_bits(bits, dtype, dtype, path, threads=2), bits)


@every_path
@every_cast
def test_every_length_and_offset_is_cast_and_nothing_beside_it_is_touched(path: str, source: str, target: str) -> None:
    size = BITS[target].itemsize
    bits = np.random.default_rng(3).integers(0, 1 << 32, 1200, np.uint32).astype(BITS[source])
    expected = torch_bits(bits, source, target)
    lengths = [*range(131), 255, 256, 257, 320, 511, 512, 513, 1024, 1100]
    for source_offset, target_offset in [(0, 0), (1, 0), (0, 1), (3, 5), (7, 31), (16, 32)]:
        for length in lengths:
            array = bits[source_offset : source_offset + length].view(DTYPES[source])
            memory = np.full((target_offset + length + 40) * size, 0xA5, np.uint8)
            out = memory.view(DTYPES[target])[target_offset : target_offset + length]
            _core.kernels_cast(array, DTYPES[target], out, 1, path)
            assert_same_bits(out.view(BITS[target]), expected[source_offset : source_offset + length], target)
            assert (memory[: target_offset * size] == 0xA5).all()
            assert (memory[(target_offset + length) * size :] == 0xA5).all()


@every_path
@every_cast
def test_arrays_at_odd_addresses_are_cast(path: str, source: str, target: str) -> None:
    bits = np.random.default_rng(4).integers(0, 1 << 32, 40_000, np.uint32).astype(BITS[source])
    expected = torch_bits(bits, source, target)
    for length in (0, 1, 7, 33, 300, 40_000):
        given_bytes = bytearray(b"\0" + bits[:length].tobytes())
        array = np.frombuffer(given_bytes, DTYPES[source], length, offset=1)
        out = np.frombuffer(bytearray(length * BITS[target].itemsize + 1), DTYPES[target], length, offset=1)
        _core.kernels_cast(array, DTYPES[target], out, 2, path)
        assert_same_bits(out.copy().view(BITS[target]), expected[:length], target)


@every_path
@every_cast
@each("threads", [2, 1000])
def test_the_number_of_threads_changes_nothing(path: str, source: str, target: str, threads: int) -> None:
    bits = np.random.default_rng(5).integers(0, 1 << 32, (1 << 18) + 77, np.uint32).astype(BITS[source])
    expected = torch_bits(bits, source, target)
    for length in ((1 << 14) + 1, (1 << 15) - 1, 1 << 15, bits.size):
        ours = our_bits(bits[:length], source, target, path, threads=threads)
        assert_same_bits(ours, expected[:length], target, bits)


def test_several_threads_may_cast_at_once() -> None:
    bits = np.random.default_rng(8).integers(0, 1 << 32, 1 << 20, np.uint32)
    expected = torch_bits(bits, "float32", "float16")
    start = threading.Barrier(4)

    def cast_often(_: int) -> None:
        start.wait()
        for _ in range(50):
            ours = kernels.to_float16(bits.view(np.float32), threads=2).view(np.uint16)
            assert_same_bits(ours, expected, "float16")

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(cast_often, range(4)))
