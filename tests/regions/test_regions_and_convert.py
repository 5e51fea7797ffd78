"""Regions beside convert, restore and disable_casts."""

from __future__ import annotations

import threading

import torch
import torch.nn.functional as F

from habana_mp import _core, hmp
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import BF16, FP16, FP32, X, dtype_of_product


def test_in_a_region_its_lists_hold_and_outside_converts(converted: Converter) -> None:
    converted(bf16=["exp"])
    assert (dtype_of_product(), torch.exp(X).dtype) == (FP32, BF16)
    with hmp.autocast("cpu"):
        assert (dtype_of_product(), torch.exp(X).dtype) == (BF16, FP32)
    assert (dtype_of_product(), torch.exp(X).dtype) == (FP32, BF16)


def test_converting_inside_a_region_leaves_the_region(converted: Converter) -> None:
    with hmp.autocast("cpu"):
        converted(bf16=["exp"])
        assert (dtype_of_product(), torch.exp(X).dtype) == (BF16, FP32)
    assert (dtype_of_product(), torch.exp(X).dtype) == (FP32, BF16)


def test_restore_takes_out_what_regions_need_and_an_open_one_casts_nothing() -> None:
    with hmp.autocast("cpu"):
        hmp.restore()
        assert _core.installed_count() == 0
        assert dtype_of_product() is FP32
    assert dtype_of_product() is FP32


def test_a_region_can_be_entered_again_after_restore() -> None:
    region = hmp.autocast("cpu", preset="torch-cuda")
    with region:
        assert dtype_of_product() is BF16
    hmp.restore()
    with region:
        assert (dtype_of_product(), F.softmin(X.bfloat16(), -1).dtype) == (BF16, FP32)


_KINDS = {
    "region": (lambda: hmp.autocast("cpu", FP16), FP16),
    "disable_casts": (hmp.disable_casts, FP32),
    "torch": (lambda: torch.autocast("cpu", enabled=False), FP32),
}


@each("earlier", _KINDS)
@each("later", _KINDS)
def test_regions_that_are_left_in_another_order_end_when_they_are_left(
    earlier: str, later: str, converted: Converter
) -> None:
    converted(bf16=["mm"])
    (begin_first, _), (begin_then, dtype) = _KINDS[earlier], _KINDS[later]
    first, then = begin_first(), begin_then()
    first.__enter__()
    then.__enter__()
    first.__exit__(None, None, None)
    assert dtype_of_product() is dtype
    then.__exit__(None, None, None)
    assert dtype_of_product() is BF16


def test_a_region_of_torchs_that_another_thread_converts_again_in_ends_when_it_is_left(converted: Converter) -> None:
    converted(bf16=["mm"])
    is_open, is_converted = threading.Event(), threading.Event()
    found = []

    def work() -> None:
        with torch.autocast("cpu", enabled=False):
            is_open.set()
            is_converted.wait()
        found.append(dtype_of_product())

    thread = threading.Thread(target=work)
    thread.start()
    is_open.wait()
    hmp.restore()
    converted(bf16=["mm"])
    is_converted.set()
    thread.join()
    assert found == [BF16]


@each("is_converted_before", [True, False])
def test_a_region_of_torchs_that_is_found_open_ends_when_it_is_left(
    is_converted_before: bool, converted: Converter
) -> None:
    if is_converted_before:
        converted(bf16=["mm"])
    for first, then in [
        (torch.autocast("cpu", enabled=False), hmp.disable_casts()),
        (hmp.disable_casts(), torch.autocast("cpu", enabled=False)),
    ]:
        with first:
            with then:
                hmp.restore()
                converted(bf16=["mm"])
                assert dtype_of_product() is FP32
            assert dtype_of_product() is FP32
        assert dtype_of_product() is BF16
