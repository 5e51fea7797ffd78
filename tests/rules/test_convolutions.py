"""Convolutions that the CPU's library gets wrong in bfloat16: they are computed in float32 from rounded operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from habana_mp import hmp
from helpers.each import each

Convolution = Callable[..., torch.Tensor]

PLAIN: dict[int, Convolution] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: dict[int, Convolution] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

#: Images' sizes, the kernel's, and the options of calls for which torch computes a gradient that is wrong.
WRONG: dict[str, tuple[Convolution, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "a stride beyond the width, 1d": (F.conv1d, (1,), (3,), {"stride": 2, "padding": 1}),
    "a stride beyond the result's width": (F.conv_transpose2d, (1, 1), (3, 3), {"stride": 2, "padding": 1}),
    "fewer images than the dilated kernel is deep": (
        F.conv3d,
        (3, 3, 3),
        (2, 1, 1),
        {"dilation": 3, "padding": (3, 0, 0)},
    ),
    "few channels, strided": (F.conv2d, (14, 14), (1, 1), {"stride": 2, "channels": 8}),
    "images that the kernel surpasses, higher": (F.conv3d, (3, 3, 3), (1, 8, 3), {"padding": (0, 3, 1)}),
    "images that the kernel surpasses, padded by name": (F.conv3d, (3, 2, 3), (3, 7, 3), {"padding": "same"}),
    "images that the kernel surpasses, of a result": (
        F.conv_transpose3d,
        (4, 1, 1),
        (3, 3, 5),
        {"stride": (2, 2, 1), "padding": (1, 1, 0)},
    ),
}
#: And such for which its result is.
WRONG_RESULTS: dict[str, tuple[Convolution, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "as wide as without padding": (F.conv2d, (12, 12), (3, 3), {"stride": 9, "padding": 3}),
    "three in a row": (F.conv2d, (7, 25), (3, 3), {"stride": (1, 11), "padding": (0, 5)}),
    "a dilated kernel": (F.conv2d, (1, 16), (1, 3), {"stride": 9, "padding": (0, 3), "dilation": 3}),
    "a stride beyond the width, by position": (F.conv2d, (2, 2), (5, 5), {"args": (None, 3, 2)}),
    "a stride as wide as the images": (F.conv2d, (4, 4), (4, 4), {"stride": 4}),
    "padding by name, a stride as wide as the images": (F.conv2d, (8, 8), (8, 8), {"stride": 8, "padding": "valid"}),
    "groups of one channel": (F.conv2d, (8, 8), (4, 7), {"stride": (1, 2), "channels": 8, "groups": 8}),
    "groups of one channel, fewer images than the kernel is deep": (
        F.conv3d,
        (1, 3, 3),
        (3, 3, 3),
        {"stride": (2, 1, 1), "padding": (2, 1, 1), "channels": 4, "groups": 4},
    ),
    "few channels that fill blocks": (F.conv2d, (5, 40), (1, 4), {"stride": (1, 4), "channels": 16}),
    "a result of one position": (F.conv2d, (7, 15), (3, 15), {"stride": (1, 11), "channels": 6}),
    "of volumes": (F.conv3d, (3, 3, 12), (3, 3, 3), {"args": (None, (1, 1, 9), (1, 1, 3))}),
}
#: And such for which the gradient of the images is.
WRONG_OF_IMAGES: dict[str, tuple[Convolution, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "a result as wide as the stride, deeper": (F.conv_transpose2d, (5, 1), (5, 6), {"stride": (2, 6)}),
    "few channels that fill blocks": (F.conv_transpose2d, (2, 8), (1, 8), {"stride": (1, 4)}),
    "a result that ends where it would without padding": (
        F.conv_transpose2d,
        (5, 2),
        (6, 7),
        {"stride": (5, 10), "padding": (1, 3), "output_padding": (0, 6), "dilation": 3},
    ),
}


def fill_memory() -> None:
    """What the allocator hands out next holds numbers that no gradient has."""
    sizes = (64, 200, 500, 1000, 2000, 5000, 20_000, 100_000)
    _ = [torch.full((size,), 1e6, dtype=dtype) for size in sizes for dtype in (torch.bfloat16, torch.float32)]


def gradients(
    call: Convolution, sizes: tuple[int, ...], kernel: tuple[int, ...], options: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The result of such a call, and the gradients of input and weight."""
    options = dict(options)
    channels, args = options.pop("channels", 16), options.pop("args", ())
    order = options.pop("order", torch.contiguous_format)
    generator = torch.Generator().manual_seed(0)
    # Values that bfloat16 has.
    x = torch.randint(-8, 9, (2, channels, *sizes), generator=generator).float().contiguous(memory_format=order)
    is_transposed = call.__name__.startswith("conv_transpose")
    shape = (channels, 16) if is_transposed else (16, channels // options.get("groups", 1))
    weight = torch.randint(-8, 9, (*shape, *kernel), generator=generator).float().contiguous(memory_format=order)
    x.requires_grad_()
    weight.requires_grad_()
    fill_memory()
    y = call(x, weight, *args, **options)
    fill_memory()
    return (y, *torch.autograd.grad(y, (x, weight), torch.ones_like(y)))


def assert_rounded_once(made: torch.Tensor, exact: torch.Tensor) -> None:
    """The operands are whole numbers that bfloat16 holds, so the sums are exact."""
    assert torch.equal(made.float(), exact.bfloat16().float())


@each("order", [torch.contiguous_format, torch.channels_last])
@each("name", WRONG | WRONG_RESULTS)
def test_a_convolution_that_would_be_wrong_is_the_exact_sum_rounded_once(name: str, order: torch.memory_format) -> None:
    call, sizes, kernel, options = (WRONG | WRONG_RESULTS)[name]
    if len(sizes) == 1 and order is torch.channels_last:
        return
    last = torch.channels_last_3d if len(sizes) == 3 else torch.channels_last
    options = {**options, "order": last if order is torch.channels_last else order}
    expected = gradients(call, sizes, kernel, options)
    hmp.convert(preset="torch-cpu")
    got = gradients(call, sizes, kernel, options)
    assert got[0].dtype is torch.bfloat16
    for one, other in zip(got, expected, strict=True):
        assert_rounded_once(one, other)


@each("is_frozen", [False, True])
@each("name", WRONG_OF_IMAGES)
def test_a_gradient_of_images_that_would_be_wrong_is_right(name: str, is_frozen: bool) -> None:
    call, sizes, kernel, options = WRONG_OF_IMAGES[name]
    x = torch.randint(-8, 9, (2, 17, *sizes)).float().contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = nn.Parameter(torch.randint(-8, 9, (17, 16, *kernel)).float(), requires_grad=not is_frozen)
    expected = call(x, weight, **options)
    (wanted,) = torch.autograd.grad(expected.sum(), x)
    hmp.convert(preset="torch-cpu")
    for _ in range(5):
        fill_memory()
        result = call(x, weight, **options)
        (got,) = torch.autograd.grad(result.float().sum(), x)
        assert_rounded_once(result, expected)
        assert_rounded_once(got, wanted)


@each("name", WRONG_RESULTS)
def test_a_model_in_bfloat16_is_right_too(name: str) -> None:
    call, sizes, kernel, options = WRONG_RESULTS[name]
    options = dict(options)
    channels, args = options.pop("channels", 16), options.pop("args", ())
    x = torch.randint(-8, 9, (2, channels, *sizes)).float()
    weight = torch.randint(-8, 9, (16, channels // options.get("groups", 1), *kernel)).float()
    expected = call(x, weight, *args, **options)
    hmp.convert(preset="torch-cpu")
    assert_rounded_once(call(x.bfloat16(), weight.bfloat16(), *args, **options), expected)


def test_a_compiled_convolution_is_decided_alike() -> None:
    hmp.convert(preset="torch-cpu")
    layer = nn.Conv2d(16, 16, 3, stride=2, padding=1)
    compiled = torch.compile(layer, backend="aot_eager", dynamic=True)
    for size in (1, 2, 6):
        x = torch.ones(1, 16, size, size)
        fill_memory()
        y = compiled(x)
        assert y.dtype is layer(x).dtype is torch.bfloat16
        (gradient,) = torch.autograd.grad(y.float().sum(), layer.weight)
        assert gradient.abs().max() < 100


@settings(max_examples=25)
@given(data=st.data())
def test_no_gradient_is_wrong(data: st.DataObject) -> None:
    dimensions = data.draw(st.integers(1, 3))

    def numbers(low: int, high: int) -> tuple[int, ...]:
        return data.draw(st.tuples(*[st.integers(low, high)] * dimensions))

    transposed = data.draw(st.booleans())
    call = (TRANSPOSED if transposed else PLAIN)[dimensions]
    sizes, kernel = numbers(1, 4), numbers(1, 6 if transposed else 3)
    stride = data.draw(st.sampled_from([numbers(1, 3), kernel, numbers(1, 8)]))
    # Beyond two frames before volumes, torch's gradient in float32 damages memory too.
    padding = numbers(0, 3 if dimensions < 3 else 2)
    options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": numbers(1, 2)}
    options["channels"] = data.draw(st.sampled_from([4, 16, 32]))
    if dimensions == 2:
        options["order"] = data.draw(st.sampled_from([torch.contiguous_format, torch.channels_last]))
    try:
        expected = gradients(call, sizes, kernel, options)
    except RuntimeError:
        return  # no result of such sizes
    hmp.convert(preset="torch-cpu")
    try:
        got = gradients(call, sizes, kernel, options)
    finally:
        hmp.restore()
    for one, other in zip(got, expected, strict=True):
        if other.numel() != 0:
            torch.testing.assert_close(one.float(), other, rtol=1e-2, atol=2e-2 * other.abs().max().item() + 1e-6)


@settings(max_examples=25)
@given(data=st.data())
def test_no_result_is_wrong(data: st.DataObject) -> None:
    size, kernel, stride = data.draw(st.integers(1, 25)), data.draw(st.integers(1, 7)), data.draw(st.integers(1, 12))
    padding, dilation = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 3))
    if data.draw(st.booleans()):  # as wide as without padding
        size = dilation * (kernel - 1) + 1 + stride * data.draw(st.integers(0, 3))
    if size + 2 * padding < dilation * (kernel - 1) + 1:
        return
    order = data.draw(st.sampled_from([torch.contiguous_format, torch.channels_last]))
    x = torch.randint(-8, 9, (2, 16, size, size)).float().contiguous(memory_format=order)
    weight = nn.Parameter(torch.randint(-8, 9, (17, 16, kernel, kernel)).float())
    arguments = (None, stride, padding, dilation)
    expected = F.conv2d(x, weight, *arguments)
    hmp.convert(preset="torch-cpu")
    try:
        with torch.no_grad():
            for _ in range(8):
                result = F.conv2d(x, weight, *arguments)
                fill_memory()
    finally:
        hmp.restore()
    torch.testing.assert_close(result.float(), expected, rtol=1e-2, atol=1e-2 * expected.abs().max().item() + 1e-6)
