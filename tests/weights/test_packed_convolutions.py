"""Convolutions from packed weights: the same bits as without, where they may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers import processor
from helpers.accelerators import needs_accelerator
from helpers.products import BIASES
from helpers.weights import packed

CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strided": {"stride": 2},
    "padded": {"padding": (1, 2)},
    "dilated": {"dilation": 2},
    "in groups": {"groups": 4},
    "of points": {"kernel_size": 1},
    "without bias": {"bias": False},
}


pytestmark = [
    pytest.mark.processor,
    pytest.mark.usefixtures("counted", "measured_again"),
    needs_accelerator("products"),
]


def convolution(**options: Any) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(128, 160, **{"kernel_size": 3, **options})


def convolved_by_hand(layer: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    bias = None if layer.bias is None else layer.bias.detach().bfloat16()
    options = (layer.stride, layer.padding, layer.dilation, layer.groups)
    return F.conv2d(x.bfloat16(), layer.weight.detach().clone().bfloat16(), bias, *options)


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("weight_order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.usefixtures("library")
def test_a_convolution_in_channels_last_order_gives_the_same_bits(name: str, weight_order: torch.memory_format) -> None:
    layer = convolution(**CONVOLUTIONS[name])
    layer.to(memory_format=weight_order)
    hmp.convert()
    with torch.no_grad():
        for size in (9, 9, 9, 9, 9, 9, 9, 12, 30):
            x = torch.randn(2, 128, size, size + 1).to(memory_format=torch.channels_last)
            result, expected = layer(x), convolved_by_hand(layer, x)
            assert torch.equal(result, expected)
            assert result.stride() == expected.stride()
        assert packed() == processor.library_packs_convolutions()
        layer.weight.add_(1)
        assert torch.equal(layer(x), convolved_by_hand(layer, x))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", ["bfloat16 apart", "negated bfloat16"])
def test_a_convolution_s_bias_of_any_form_is_added_as_torch_adds_it(name: str) -> None:
    hmp.convert()
    layer, bias = convolution(), BIASES[name]()
    with torch.no_grad():
        for _ in range(8):
            x = torch.randn(2, 128, 9, 9).to(memory_format=torch.channels_last)
            expected = F.conv2d(x.bfloat16(), layer.weight.detach().clone().bfloat16(), bias, (1, 1), (0, 0), (1, 1), 1)
            assert torch.equal(F.conv2d(x, layer.weight, bias, (1, 1), (0, 0), (1, 1), 1), expected)
            x = torch._neg_view(x.bfloat16())
            assert torch.equal(layer(x), convolved_by_hand(layer, x))


def assert_convolutions_are_right(layer: nn.Conv2d, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        for x in inputs:
            result, expected = layer(x), convolved_by_hand(layer, x)
            assert torch.equal(result, expected)
            assert result.stride() == expected.stride()


#: Of points: each result is the sum of a few products only, which all orders take one after the other.
POINTS = {"kernel_size": 1, "bias": False}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.usefixtures("library")
def test_a_convolution_in_channels_first_order_gives_the_same_bits(name: str, mode: Callable[[], Any]) -> None:
    layer = convolution(**CONVOLUTIONS[name])
    hmp.convert()
    with mode():
        for size in (28, 28, 28, 28, 28, 28, 28, 12, 28):
            x = torch.randn(2, 128, size, size + 1)
            result, expected = layer(x), convolved_by_hand(layer, x)
            assert torch.equal(result, expected)
            assert result.stride() == expected.stride()
            assert result.is_inference() is (mode is torch.inference_mode)


@pytest.mark.usefixtures("library")
def test_a_convolution_in_channels_first_order_is_packed_where_the_bits_are_the_same() -> None:
    layer = convolution(**POINTS)
    hmp.convert()
    x = torch.randn(2, 128, 28, 28)
    is_alike = processor.library_sums_as_convolution(layer, x)
    assert_convolutions_are_right(layer, *[x] * 8)
    assert packed() == is_alike
    not_finite = x.clone()
    not_finite[:, 0] = float("inf")
    assert_convolutions_are_right(layer, x.bfloat16(), -x, torch.zeros_like(x), not_finite, x.half())
    assert packed() == is_alike
    with torch.no_grad():
        layer.weight.mul_(2)
    assert_convolutions_are_right(layer, *[x] * 8)
    assert packed() == is_alike


@pytest.mark.usefixtures("library")
def test_a_packed_convolution_serves_the_sizes_and_threads_for_which_its_bits_were_compared() -> None:
    layer = convolution(**POINTS)
    hmp.convert()
    x, larger = torch.randn(2, 128, 28, 28), torch.randn(2, 128, 28, 30)
    is_alike = processor.library_sums_as_convolution(layer, x)
    assert_convolutions_are_right(layer, *[x] * 8)
    assert packed() == is_alike
    assert_convolutions_are_right(layer, larger)
    assert packed() == 0
    assert_convolutions_are_right(layer, *[x] * 8)
    assert packed() == is_alike
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert_convolutions_are_right(layer, x)
        assert packed() == 0
    finally:
        torch.set_num_threads(threads)


@pytest.mark.usefixtures("library")
def test_images_of_ever_new_sizes_are_not_compared_for_ever() -> None:
    layer = convolution(**POINTS)
    hmp.convert()
    for size in range(28, 36):
        x = torch.randn(2, 128, size, size)
        assert_convolutions_are_right(layer, *[x] * 8)
        assert packed() == processor.library_sums_as_convolution(layer, x)
    x = torch.randn(2, 128, 36, 36)
    assert_convolutions_are_right(layer, *[x] * 8)
    assert packed() == 0


@pytest.mark.usefixtures("library")
def test_too_few_results_prove_nothing() -> None:
    layer = convolution(**POINTS)
    hmp.convert()
    assert_convolutions_are_right(layer, *[torch.randn(1, 128, 9, 9)] * 8)
    assert packed() == 0


@pytest.mark.usefixtures("library")
def test_a_channels_last_weight_decides_the_order_of_the_result() -> None:
    layer = convolution(**CONVOLUTIONS["plain"]).to(memory_format=torch.channels_last)
    hmp.convert()
    x = torch.randn(2, 128, 28, 28)
    assert_convolutions_are_right(layer, *[x] * 8)
    assert convolved_by_hand(layer, x).is_contiguous(memory_format=torch.channels_last)
    assert packed() == 0


@pytest.mark.parametrize("order", ["few", "no batch", "one pixel"])
@pytest.mark.usefixtures("library")
def test_a_convolution_in_another_order_is_not_packed(order: str) -> None:
    layer = convolution()
    shapes = {"few": (2, 128, 9, 9), "no batch": (128, 9, 9), "one pixel": (2, 128, 1, 1)}
    x = torch.randn(shapes[order])
    if order == "one pixel":
        layer = convolution(kernel_size=1)
    hmp.convert()
    with torch.no_grad():
        for _ in range(8):
            assert torch.equal(layer(x), convolved_by_hand(layer, x))
            assert layer(x).stride() == convolved_by_hand(layer, x).stride()
    assert packed() == 0


@pytest.mark.usefixtures("library")
def test_a_weight_that_two_convolutions_share_serves_both() -> None:
    one, other = convolution(), convolution(padding=1)
    other.weight, other.bias = one.weight, one.bias
    hmp.convert()
    x = torch.randn(2, 128, 9, 9).to(memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(12):
            for layer in (one, other):
                assert torch.equal(layer(x), convolved_by_hand(layer, x))
