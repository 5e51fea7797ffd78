"""Stochastic rounding: the same bits on every path, unbiased, and independent from place to place."""

from __future__ import annotations

import numpy as np
import pytest

from habana_mp import _core, kernels
from helpers.arrays import DTYPES, Array, assert_same_bits, every_path, hard_bits, is_nan, random_bits

pytestmark = pytest.mark.processor


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
        assert_same_bits(ours, expected[:length], "bfloat16", bits)


@every_path
def test_what_bfloat16_can_hold_is_never_changed_by_stochastic_rounding(path: str) -> None:
    every = np.arange(65536, dtype=np.uint32)
    for seed in range(20):
        assert_same_bits(stochastic_bits(every << 16, seed, path), every.astype(np.uint16), "bfloat16", every)


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
