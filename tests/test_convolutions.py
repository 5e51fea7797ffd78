"""Convolutions whose gradients the CPU's library gets wrong in bfloat16 (rule 8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from habana_mp import hmp

Convolution = Callable[..., torch.Tensor]

PLAIN: dict[int, Convolution] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: dict[int, Convolution] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

#: Images' sizes, the kernel's, and the options of calls for which torch computes a gradient that is wrong.
WRONG: dict[str, tuple[Convolution, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "a stride beyond the width, 1d": (F.conv1d, (1,), (3,), {"stride": 2, "padding": 1}),
    "a stride beyond the width, 2d": (F.conv2d, (4, 1), (3, 3), {"stride": (1, 2), "padding": 1}),
    "a stride beyond the width, by position": (F.conv2d, (2, 2), (5, 5), {"args": (None, 3, 2)}),
    "a stride beyond the result's width": (F.conv_transpose2d, (1, 1), (3, 3), {"stride": 2, "padding": 1}),
    "fewer images than the kernel is deep": (F.conv3d, (2, 4, 4), (3, 3, 3), {"padding": 1}),
    "fewer images than the dilated kernel is deep": (
        F.conv3d,
        (3, 3, 3),
        (2, 1, 1),
        {"dilation": 3, "padding": (3, 0, 0)},
    ),
    "few channels, strided": (F.conv2d, (14, 14), (1, 1), {"stride": 2, "channels": 8}),
}
#: And such for which it is right.
RIGHT: dict[str, tuple[Convolution, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "no stride": (F.conv2d, (1, 1), (3, 3), {"padding": 1}),
    "a stride": (F.conv2d, (2, 2), (3, 3), {"stride": 2, "padding": 1}),
    "a high image": (F.conv2d, (1, 4), (3, 3), {"stride": (2, 1), "padding": 1}),
    "as many images as the kernel is deep": (F.conv3d, (3, 4, 4), (3, 3, 3), {"padding": 1}),
    "many channels, strided": (F.conv2d, (14, 14), (1, 1), {"stride": 2}),
    "a result as wide as its stride": (F.conv_transpose1d, (2,), (2,), {"stride": 2}),
    "padding by name": (F.conv2d, (3, 3), (3, 3), {"padding": "same"}),
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
    shape = (16, channels) if not call.__name__.startswith("conv_transpose") else (channels, 16)
    weight = torch.randint(-8, 9, (*shape, *kernel), generator=generator).float().contiguous(memory_format=order)
    x.requires_grad_()
    weight.requires_grad_()
    fill_memory()
    y = call(x, weight, *args, **options)
    fill_memory()
    return (y, *torch.autograd.grad(y, (x, weight), torch.ones_like(y)))


@pytest.mark.parametrize("name", WRONG)
def test_a_gradient_that_would_be_wrong_is_computed_in_float32(name: str) -> None:
    call, sizes, kernel, options = WRONG[name]
    expected = gradients(call, sizes, kernel, options)
    hmp.convert(preset="torch-cpu")
    got = gradients(call, sizes, kernel, options)
    assert got[0].dtype is torch.float32
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", RIGHT)
def test_any_other_convolution_is_lowered(name: str) -> None:
    call, sizes, kernel, options = RIGHT[name]
    expected = gradients(call, sizes, kernel, options)
    hmp.convert(preset="torch-cpu")
    got = gradients(call, sizes, kernel, options)
    assert got[0].dtype is torch.bfloat16
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=1e-2, atol=2e-2 * other.abs().max().item())


@pytest.mark.parametrize("name", WRONG)
def test_without_a_gradient_it_is_lowered_all_the_same(name: str) -> None:
    call, sizes, kernel, options = WRONG[name]
    options = dict(options)
    channels, args = options.pop("channels", 16), options.pop("args", ())
    hmp.convert(preset="torch-cpu")
    x, weight = torch.ones(2, channels, *sizes), torch.ones(channels, channels, *kernel)
    assert call(x, weight, *args, **options).dtype is torch.bfloat16
    with torch.no_grad():
        assert call(x, nn.Parameter(weight), *args, **options).dtype is torch.bfloat16
    # Of the images alone it is right.
    assert call(x.requires_grad_(), weight, *args, **options).dtype is torch.bfloat16


def test_float16_keeps_its_gradients() -> None:
    call, sizes, kernel, options = WRONG["a stride beyond the width, 2d"]
    expected = gradients(call, sizes, kernel, options)
    hmp.convert(preset="torch-cpu", dtype=torch.float16)
    got = gradients(call, sizes, kernel, options)
    assert got[0].dtype is torch.float16
    torch.testing.assert_close(got[2], expected[2], rtol=1e-2, atol=1.0)


def test_it_is_told_as_an_operation_without_a_kernel() -> None:
    hmp.convert(preset="torch-cpu")
    hmp.reset_report()
    layer = nn.Conv2d(16, 16, 3, stride=2, padding=1)
    layer(torch.ones(1, 16, 1, 1))
    layer(torch.ones(1, 16, 4, 4))
    assert {(row.operation, row.precision, row.calls) for row in hmp.report(show=False).rows} == {
        ("conv2d", "fp32", 1),
        ("conv2d", "bf16", 1),
    }


@pytest.mark.parametrize("arguments", [(), (torch.ones(1, 2, 3),), (torch.ones(1, 2, 3), 4, None, 2)])
def test_a_wrong_call_raises_what_torch_raises(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError) as plain:
        torch.conv1d(*arguments)
    hmp.convert(preset="torch-cpu")
    with pytest.raises(TypeError) as error:
        torch.conv1d(*arguments)
    assert str(error.value) == str(plain.value)


def test_a_compiled_convolution_is_decided_alike() -> None:
    hmp.convert(preset="torch-cpu")
    layer = nn.Conv2d(16, 16, 3, stride=2, padding=1)
    compiled = torch.compile(layer, backend="aot_eager", dynamic=True)
    for size in (1, 2, 6):
        x = torch.ones(1, 16, size, size)
        fill_memory()
        y = compiled(x)
        assert y.dtype is layer(x).dtype is (torch.float32 if size == 1 else torch.bfloat16)
        (gradient,) = torch.autograd.grad(y.float().sum(), layer.weight)
        assert gradient.abs().max() < 100


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_gradient_is_wrong(data: st.DataObject) -> None:
    dimensions = data.draw(st.integers(1, 3))

    def numbers(low: int, high: int) -> tuple[int, ...]:
        return data.draw(st.tuples(*[st.integers(low, high)] * dimensions))

    transposed = data.draw(st.booleans())
    call = (TRANSPOSED if transposed else PLAIN)[dimensions]
    sizes, kernel = numbers(1, 4), numbers(1, 3)
    options: dict[str, Any] = {"stride": numbers(1, 3), "padding": numbers(0, 2), "dilation": numbers(1, 2)}
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
