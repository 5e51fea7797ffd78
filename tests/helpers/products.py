"""Products with weights, as layers and as user code writes them, and the same products computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import _core, hmp
from helpers.processor import Call, kernels_product, own_kernels_compute
from helpers.weights import products


def assert_same_bits(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert result.dtype is torch.bfloat16
    assert result.stride() == expected.stride()
    assert torch.equal(result.nan_to_num(), expected.nan_to_num())
    assert torch.equal(result.isnan(), expected.isnan())


INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "one row": lambda: torch.randn(1, 144),
    "rows": lambda: torch.randn(7, 144),
    "many rows": lambda: torch.randn(300, 144),
    "a batch": lambda: torch.randn(3, 5, 144),
    "four dimensions": lambda: torch.randn(2, 3, 5, 144),
    "one dimension": lambda: torch.randn(144),
    "no rows": lambda: torch.randn(0, 144),
    "bfloat16": lambda: torch.randn(7, 144, dtype=torch.bfloat16),
    "transposed": lambda: torch.randn(144, 7).t(),
    "every other row": lambda: torch.randn(14, 144)[::2],
    "every other column": lambda: torch.randn(7, 288)[:, ::2],
    "expanded": lambda: torch.randn(1, 144).expand(6, 144),
    "not finite": lambda: torch.full((2, 144), float("inf")),
    "sequence first": lambda: torch.randn(4, 2, 144).transpose(0, 1),
    "rows of something wider": lambda: torch.randn(7, 200)[:, :144],
    "rows of something wider, in a batch": lambda: torch.randn(3, 7, 200)[:, :, :144],
    "the last position": lambda: torch.randn(3, 7, 144)[:, -1:],
    "the last position of one": lambda: torch.randn(1, 7, 144)[:, -1:],
    "negated bfloat16": lambda: torch._neg_view(torch.randn(7, 144, dtype=torch.bfloat16)),
    "bfloat16 rows of something wider": lambda: torch.randn(7, 200, dtype=torch.bfloat16)[:, 5:149],
    "bfloat16 transposed": lambda: torch.randn(144, 7, dtype=torch.bfloat16).t(),
    "bfloat16 expanded": lambda: torch.randn(1, 144, dtype=torch.bfloat16).expand(6, 144),
    "bfloat16 sequence first": lambda: torch.randn(4, 2, 144, dtype=torch.bfloat16).transpose(0, 1),
}


BIASES: dict[str, Callable[[], torch.Tensor]] = {
    "a column": lambda: torch.randn(160, 1),
    "a matrix": lambda: torch.randn(160, 160),
    "one for all": lambda: torch.randn(1),
    "bfloat16 apart": lambda: torch.randn(320).bfloat16()[::2],
    "negated bfloat16": lambda: torch._neg_view(torch.randn(160).bfloat16()),
}


@dataclass
class Product:
    """A product as user code writes it, of rows of 144 values."""

    call: Call
    turned: bool = True  # the weight is 144 x 160
    matrix_only: bool = False
    bias: bool = False  # True if it adds a bias


PRODUCTS = {
    "F.linear": Product(lambda x, w, b: F.linear(x, w, b), turned=False, bias=True),
    "F.linear, without bias": Product(lambda x, w, b: F.linear(x, w), turned=False),
    "torch.addmm": Product(lambda x, w, b: torch.addmm(b, x, w), matrix_only=True, bias=True),
    "addmm as a method": Product(lambda x, w, b: b.addmm(x, w), matrix_only=True, bias=True),
    "torch.addmm, of a view": Product(
        lambda x, w, b: torch.addmm(b, x, w.T), turned=False, matrix_only=True, bias=True
    ),
    "torch.mm": Product(lambda x, w, b: torch.mm(x, w), matrix_only=True),
    "mm as a method, of a view": Product(lambda x, w, b: x.mm(w.T), turned=False, matrix_only=True),
    "torch.matmul": Product(lambda x, w, b: torch.matmul(x, w)),
    "torch.linalg.matmul": Product(lambda x, w, b: torch.linalg.matmul(x, w)),
    "matmul as a method, of a view": Product(lambda x, w, b: x.matmul(w.transpose(0, 1)), turned=False),
    "@": Product(lambda x, w, b: x @ w),
    "@, of a view": Product(lambda x, w, b: x @ w.mT, turned=False),
    "F.linear, of a view": Product(lambda x, w, b: F.linear(x, w.T, b), bias=True),
}


class Weighted(nn.Module):
    """A module that makes a product with its own weight and bias."""

    def __init__(self, product: Product, shape: tuple[int, int] = (160, 144)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.product = product
        self.weight = nn.Parameter(torch.randn(shape[::-1] if product.turned else shape))
        self.bias = nn.Parameter(torch.randn(shape[0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product.call(x, self.weight, self.bias)

    def by_torch(self, x: torch.Tensor) -> torch.Tensor:
        """Computes the product by torch alone: in bfloat16, or without instructions for it in float32."""
        with hmp.disable_casts():
            weight = self.weight.detach().clone().bfloat16().requires_grad_()
            given = x.bfloat16(), weight, self.bias.detach().bfloat16()
            if _core.kernels_multiplies_bfloat16():
                return self.product.call(*given)
            return self.product.call(*(one.float() for one in given)).bfloat16()

    def by_kernels(self, x: torch.Tensor) -> torch.Tensor:
        """Computes the product by the package's kernels, without the engine."""
        with hmp.disable_casts():
            weight = self.weight.detach().bfloat16()
            bias = self.bias.detach().bfloat16() if self.product.bias else None
            outer_first = weight.t() if self.product.turned else weight
            return kernels_product(x.bfloat16(), outer_first, bias, inner_first=self.product.turned)

    def is_computed_by_kernels(self, x: torch.Tensor) -> bool:
        """True if the package's kernels must compute such rows here, if they are stored one after the other."""
        return own_kernels_compute(x.numel() // x.shape[-1], self.weight)


#: The inputs whose rows are stored so that the package's kernels take them.
IN_ROWS = {"one row", "rows", "many rows", "a batch", "four dimensions", "bfloat16", "rows of something wider"}


def assert_call_is_right(layer: Weighted, x: torch.Tensor, *, by_kernels: bool | None = None) -> None:
    """Asserts the bits of the result. ``by_kernels``: whether our kernels must compute it, if that matters."""
    before = products()
    result = layer(x)
    made = products() - before
    assert_same_bits(result, layer.by_kernels(x) if made else layer.by_torch(x))
    if by_kernels is not None:
        assert made == by_kernels
