"""A product is a sum that is rounded once: all forms, both precisions, forwards and gradients, on this processor and as
without instructions for the lower precisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp
from helpers.each import each

pytestmark = pytest.mark.usefixtures("with_and_without_instructions")
Call = Callable[..., torch.Tensor]
Tensors = Sequence[torch.Tensor]

IMAGES = (2, 16, 12, 12)
#: Calls, and the sizes of their tensors.
FORMS: dict[str, tuple[Call, Sequence[tuple[int, ...]]]] = {
    "linear": (F.linear, [(17, 96), (140, 96), (140,)]),
    "linear, large": (F.linear, [(170, 384), (400, 384), (400,)]),
    "linear without a bias": (F.linear, [(17, 96), (40, 96)]),
    "linear of a vector": (F.linear, [(96,), (140, 96), (140,)]),
    "linear of batches": (F.linear, [(3, 5, 96), (40, 96), (40,)]),
    "linear of batches, turned": (lambda x, w, b: F.linear(x.mT, w, b), [(3, 96, 5), (40, 96), (40,)]),
    "linear, sequence first": (lambda x, w, b: F.linear(x.transpose(0, 1), w, b), [(30, 50, 96), (400, 96), (400,)]),
    "linear, turned": (lambda x, w, b: F.linear(x.t(), w, b), [(96, 17), (40, 96), (40,)]),
    "linear by keywords": (lambda x, w, b: F.linear(weight=w, bias=b, input=x.mT), [(3, 96, 5), (40, 96), (40,)]),
    "linear of a vector with gaps": (lambda x, w, b: F.linear(x[::2], w, b), [(192,), (140, 96), (140,)]),
    "linear, one number for all, turned": (lambda x, w, b: F.linear(x.mT, w, b), [(3, 96, 5), (40, 96), (1,)]),
    "linear, one number for all": (F.linear, [(17, 96), (40, 96), (1,)]),
    "linear, one column": (F.linear, [(170, 96), (1, 96), (1,)]),
    "linear of something wider": (lambda x, w: F.linear(x[:, 1:97], w), [(170, 100), (140, 96)]),
    "mm": (torch.mm, [(37, 96), (96, 140)]),
    "mm, both turned": (lambda x, w: x.t() @ w.t(), [(96, 37), (40, 96)]),
    "mm of every other column": (lambda x, w: x[:, ::2] @ w, [(37, 192), (96, 40)]),
    "mm, one column": (torch.mm, [(137, 96), (96, 1)]),
    "addmm": (torch.addmm, [(40,), (37, 96), (96, 40)]),
    "addmm of a matrix": (torch.addmm, [(37, 140), (37, 96), (96, 140)]),
    "addmm of one number": (torch.addmm, [(1,), (37, 96), (96, 140)]),
    "addmm, scaled": (partial(torch.addmm, alpha=0.5, beta=2.0), [(37, 40), (37, 96), (96, 40)]),
    "addmm, scaled bias": (partial(torch.addmm, alpha=2, beta=0.5), [(140,), (137, 96), (96, 140)]),
    "bmm": (torch.bmm, [(4, 24, 96), (4, 96, 24)]),
    "bmm, turned": (lambda x, y: x @ y.mT, [(4, 24, 96), (4, 24, 96)]),
    "matmul, expanded": (torch.matmul, [(8, 32, 96), (1, 96, 32)]),
    "matmul, first expanded": (torch.matmul, [(32, 96), (8, 96, 32)]),
    "matmul of four dimensions": (torch.matmul, [(2, 3, 24, 96), (2, 3, 96, 24)]),
    "matmul of four and three": (torch.matmul, [(2, 3, 24, 96), (3, 96, 24)]),
    "matmul, both expanded": (torch.matmul, [(5, 1, 3, 24, 96), (2, 1, 96, 24)]),
    "matmul by a vector": (torch.matmul, [(4, 37, 96), (96,)]),
    "matmul of a vector": (torch.matmul, [(96,), (4, 96, 37)]),
    "baddbmm": (torch.baddbmm, [(4, 24, 24), (4, 24, 96), (4, 96, 24)]),
    "baddbmm, scaled": (partial(torch.baddbmm, alpha=0.5, beta=2), [(4, 24, 24), (4, 24, 96), (4, 96, 24)]),
    "addbmm": (torch.addbmm, [(24, 24), (4, 24, 96), (4, 96, 24)]),
    "addbmm, scaled": (partial(torch.addbmm, alpha=0.5, beta=2), [(24, 24), (4, 24, 96), (4, 96, 24)]),
    "einsum": (partial(torch.einsum, "bqd,bkd->bqk"), [(4, 24, 96), (4, 24, 96)]),
    "einsum, summed": (partial(torch.einsum, "bqd,bkd->qk"), [(4, 24, 96), (4, 24, 96)]),
    "tensordot": (partial(torch.tensordot, dims=2), [(37, 8, 12), (8, 12, 40)]),
    "inner": (torch.inner, [(37, 96), (40, 96)]),
    "mv": (torch.mv, [(137, 96), (96,)]),
    "mv, turned": (lambda x, w: x.t().mv(w), [(96, 137), (96,)]),
    "addmv": (torch.addmv, [(137,), (137, 96), (96,)]),
    "addmv, scaled": (partial(torch.addmv, alpha=0.5, beta=2), [(137,), (137, 96), (96,)]),
    "addmv, one column": (torch.addmv, [(1370,), (1370, 1), (1,)]),
    "dot": (torch.dot, [(9600,), (9600,)]),
    "bilinear": (F.bilinear, [(12, 8), (12, 9), (7, 8, 9), (7,)]),
    "conv1d": (F.conv1d, [(3, 16, 50), (24, 16, 3), (24,)]),
    "conv1d without a batch": (F.conv1d, [(16, 50), (24, 16, 3), (24,)]),
    "conv2d": (partial(F.conv2d, padding=1), [IMAGES, (24, 16, 3, 3), (24,)]),
    "conv2d, channels last": (
        lambda x, w: F.conv2d(x.contiguous(memory_format=torch.channels_last), w),
        [IMAGES, (24, 16, 3, 3)],
    ),
    "conv2d, 1 x 1": (F.conv2d, [IMAGES, (24, 16, 1, 1)]),
    "conv2d, strided": (partial(F.conv2d, stride=2), [IMAGES, (24, 16, 3, 3)]),
    "conv2d, dilated": (partial(F.conv2d, dilation=2), [IMAGES, (24, 16, 3, 3), (24,)]),
    "conv2d, grouped": (partial(F.conv2d, groups=4), [IMAGES, (24, 4, 3, 3)]),
    "conv2d, depthwise": (partial(F.conv2d, groups=16), [IMAGES, (16, 1, 3, 3)]),
    "conv2d without a batch": (F.conv2d, [IMAGES[1:], (24, 16, 3, 3)]),
    "conv2d of equal size": (partial(F.conv2d, padding="same"), [IMAGES, (24, 16, 3, 3), (24,)]),
    "conv2d of patches": (partial(F.conv2d, stride=4), [(2, 3, 32, 32), (24, 3, 4, 4), (24,)]),
    "conv3d": (F.conv3d, [(2, 8, 6, 7, 7), (8, 8, 3, 3, 3)]),
    "conv_transpose1d": (F.conv_transpose1d, [(3, 16, 50), (16, 24, 3), (24,)]),
    "conv_transpose1d, padded as far as a stride": (
        partial(F.conv_transpose1d, dilation=2, output_padding=1),
        [(3, 16, 50), (16, 24, 3), (24,)],
    ),
    "conv_transpose2d": (
        partial(F.conv_transpose2d, stride=2, output_padding=1),
        [(2, 16, 7, 7), (16, 24, 3, 3), (24,)],
    ),
    "conv_transpose3d": (F.conv_transpose3d, [(2, 8, 4, 5, 5), (8, 8, 3, 3, 3)]),
}


def computed(call: Call, values: Tensors, gradient: torch.Tensor | None) -> Tensors:
    """The result of the call; with a gradient of it, also those of all values."""
    if gradient is None:
        with torch.no_grad():
            return [call(*values)]
    leaves = [one.detach().clone().requires_grad_() for one in values]
    made = call(*leaves)
    return [made.detach(), *torch.autograd.grad(made, leaves, gradient.to(made.dtype))]


def unit_in_last_place(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    limits = torch.finfo(dtype)
    return limits.eps * 2 ** values.abs().clamp_min(limits.smallest_normal).log2().floor()


@each("with_gradients", [False, True])
@each("dtype", [torch.bfloat16, torch.float16])
@each("name", FORMS)
def test_a_product_is_rounded_once(name: str, dtype: torch.dtype, with_gradients: bool) -> None:
    call, sizes = FORMS[name]
    for make in (lambda size: torch.randint(-8, 9, size), torch.randn):
        values = [make(one).to(dtype) for one in sizes]
        double = [one.double() for one in values]
        gradient = make(call(*double).shape).to(dtype) if with_gradients else None
        exact = computed(call, double, gradient)
        hmp.convert(preset="half")
        made = computed(call, values, gradient)
        hmp.restore()
        assert {one.dtype for one in made} == {dtype}
        if make is not torch.randn:  # the sums of whole numbers are exact
            assert all(torch.equal(one, other.float().to(dtype)) for one, other in zip(made, exact, strict=True))
            continue
        magnitudes = computed(call, [one.abs() for one in double], None if gradient is None else gradient.abs())
        ones = None if gradient is None else torch.ones_like(gradient)
        terms = computed(call, [torch.ones_like(one) for one in double], ones)
        for one, other, of_magnitudes, count in zip(made, exact, magnitudes, terms, strict=True):
            of_sum = (count + 1) * 2**-24 * of_magnitudes
            rounding = unit_in_last_place(other.abs() + of_sum, dtype) / 2
            assert ((one.double() - other).abs() <= rounding + of_sum).all()
