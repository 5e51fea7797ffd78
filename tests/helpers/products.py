"""Products with weights, as layers and as user code writes them, and the same products computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers import processor
from helpers.processor import Call
from helpers.weights import products


def assume(form: processor.Form, monkeypatch: pytest.MonkeyPatch) -> None:
    processor.assume_products(form)
    if form == "own in any order":
        draw_short_numbers(monkeypatch)


def draw_short_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes random numbers have few bits from now on, so float32 sums their products without rounding, in any order."""

    def draw(*sizes: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        shape = sizes[0] if sizes and not isinstance(sizes[0], int) else sizes
        with hmp.disable_casts():
            return (torch.randint(-8, 9, tuple(shape)) / 8).to(dtype)

    def reset(layer: nn.Linear) -> None:
        with torch.no_grad():
            for one in layer.parameters():
                one.copy_(draw(one.shape))

    monkeypatch.setattr(torch, "randn", draw)
    monkeypatch.setattr(nn.Linear, "reset_parameters", reset)


def assert_same_bits(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert result.dtype is torch.bfloat16
    assert result.stride() == expected.stride()
    assert torch.equal(result.nan_to_num(), expected.nan_to_num())
    assert torch.equal(result.isnan(), expected.isnan())


def linear_by_hand(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """Computes a layer in bfloat16 by torch alone. Without a gradient of the weight, torch computes some products
    differently."""
    with hmp.disable_casts():
        bias = None if layer.bias is None else layer.bias.detach().bfloat16()
        return F.linear(x.bfloat16(), layer.weight.detach().clone().bfloat16().requires_grad_(), bias)


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

    def by_hand(self, x: torch.Tensor) -> torch.Tensor:
        """Computes the product in bfloat16 by torch alone."""
        with hmp.disable_casts():
            weight = self.weight.detach().clone().bfloat16().requires_grad_()
            return self.product.call(x.bfloat16(), weight, self.bias.detach().bfloat16())

    def is_served(self, x: torch.Tensor) -> bool:
        """True if the package's kernels must compute this call here."""
        product = self.product
        outer, inner = self.weight.shape[::-1] if product.turned else self.weight.shape
        return processor.own_kernels_serve(product.call, x, (outer, inner), turned=product.turned, bias=product.bias)


#: The inputs whose rows are stored so that the package's kernels take them.
IN_ROWS = {"one row", "rows", "many rows", "a batch", "four dimensions", "bfloat16", "rows of something wider"}


def assert_call_is_right(layer: Weighted, x: torch.Tensor, *, served: bool | None = None) -> None:
    """Asserts the bits of the result. ``served``: whether the package's kernels must compute it, if that matters."""
    before = products()
    result = layer(x)
    now = products()
    assert_same_bits(result, layer.by_hand(x))
    if served is not None:
        assert now - before == served
