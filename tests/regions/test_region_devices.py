"""The devices that a region may be for, their lists, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp
from helpers.each import each
from helpers.probes import BF16, FP16, FP32, X, dtype_of_product

# ---- the devices and their lists -----------------------------------------------------------------------------------


def test_the_lists_follow_the_device_name_that_is_given_as_preset() -> None:
    with hmp.autocast("cpu", preset="hpu"):
        assert (dtype_of_product(), torch.mul(X, X).dtype, torch.exp(X.bfloat16()).dtype) == (BF16, BF16, FP32)
    with hmp.autocast("cpu", preset="xpu"):
        assert F.conv_transpose2d(X[None, None], X[None, None]).dtype is BF16
    with hmp.autocast("cpu", FP16, preset="cuda"):
        assert (dtype_of_product(), torch.exp(X.half()).dtype) == (FP16, FP32)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", BF16), ("cuda", FP16), ("xpu", BF16), ("hpu", BF16)])
def test_the_default_precision_follows_the_device(device: str, dtype: torch.dtype) -> None:
    assert hmp.get_autocast_dtype(device) is dtype


@pytest.mark.parametrize("device", ["cuda", "xpu", "hpu"])
def test_a_device_that_is_not_there_gives_a_warning_and_no_effect(device: str) -> None:
    if getattr(getattr(torch, device, None), "is_available", lambda: False)():
        pytest.skip("the device is there")
    with pytest.warns(hmp.HmpWarning, match=f"{device.upper()} is not available"):
        region = hmp.autocast(device)
    with hmp.autocast("cpu"), region:
        assert dtype_of_product() is BF16
    with region:
        assert dtype_of_product() is FP32


def test_a_device_that_torch_does_not_know_is_torchs_error() -> None:
    with pytest.raises(RuntimeError):
        torch.autocast("abacus")
    with pytest.raises(RuntimeError, match="abacus"):
        hmp.autocast("abacus")


def test_a_device_without_lists_needs_a_preset() -> None:
    with pytest.raises(ValueError, match="`preset` must be given for 'mtia'"):
        hmp.autocast("mtia", BF16)


def test_another_lower_precision_is_warned_about_and_nothing_is_cast() -> None:
    with pytest.warns(hmp.HmpWarning, match=r"not to torch\.float32"):
        region = hmp.autocast("cpu", FP32)
    with hmp.autocast("cpu"), region:
        assert dtype_of_product() is FP32


def test_a_dtype_must_be_one() -> None:
    wrong: Any = "bf61"
    with pytest.raises(ValueError, match=r"`dtype` must be torch\.bfloat16 or torch\.float16; got 'bf61'"):
        hmp.autocast("cpu", wrong)


@pytest.mark.parametrize("device", ["meta"])
def test_a_tensor_of_another_device_is_left_alone(device: str) -> None:
    other = X.to(device)
    with hmp.autocast("cpu"):
        assert torch.mm(other, other).dtype is FP32
        assert torch.cat([other, other.bfloat16()]).dtype is FP32


@each(
    "preset",
    ["torch-cpu", "torch-cuda", "torch-xpu", "xpu-amp-bf16", "hpu-autocast", "hmp-default", "hmp-guide-o1", "resnet50"],
)
def test_every_preset_is_a_region_and_a_conversion_with_the_same_results(preset: str) -> None:
    calls: list[Callable[[], torch.Tensor]] = [
        lambda: torch.mm(X, X),
        lambda: F.linear(X, X),
        lambda: torch.exp(X.bfloat16()),
        lambda: F.layer_norm(X.bfloat16(), (8,)),
        lambda: F.mse_loss(X.bfloat16(), X.bfloat16()),
        lambda: torch.cat([X, X.bfloat16()]),
    ]
    with hmp.autocast("cpu", preset=preset):
        inside = [call() for call in calls]
    hmp.convert(preset=preset)
    for one, call in zip(inside, calls, strict=True):
        expected = call()
        assert one.dtype is expected.dtype
        assert torch.equal(one, expected)


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_binary_cross_entropy_is_refused_in_float16_with_the_way_out() -> None:
    p = torch.sigmoid(X)
    with hmp.autocast("cpu", FP16, preset="torch-cuda"):
        with pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
            F.binary_cross_entropy(p, p)
        with pytest.raises(RuntimeError, match="BCEWithLogitsLoss"):
            torch.nn.BCELoss()(p, p)
        assert F.binary_cross_entropy_with_logits(X, p).dtype is FP32
        with hmp.disable_casts():
            assert F.binary_cross_entropy(p, p).dtype is FP32
        assert F.binary_cross_entropy(p.double(), p.double()).dtype is torch.float64
        with hmp.autocast("cpu", BF16, preset="torch-cuda"):
            assert F.binary_cross_entropy(p, p).dtype is FP32
    assert F.binary_cross_entropy(p, p).dtype is FP32


def test_binary_cross_entropy_runs_in_float32_where_a_list_says_so() -> None:
    p = torch.sigmoid(X).half()
    with hmp.autocast("cpu", FP16):
        assert F.binary_cross_entropy(p, p).dtype is FP32


def test_float16_on_xpu_is_for_inference_only() -> None:
    layer = torch.nn.Linear(8, 8)
    with hmp.autocast("cpu", FP16, preset="xpu"):
        with torch.no_grad():
            assert layer(X).dtype is FP16
        result = layer(X)  # as the documentation's example, without no_grad
    with pytest.raises(RuntimeError, match="float16 with the lists of xpu is for inference only"):
        result.sum().backward()


def test_float16_on_hpu_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`dtype` must be torch\.bfloat16 with the lists of hpu"):
        hmp.autocast("cpu", FP16, preset="hpu")
