"""The backward of an autograd function multiplies by the float32 weight that it saved: lists are silent there."""

from typing import Any

import torch
from torch import nn

from habana_mp import hmp


class Product(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(weight)
        return x @ weight

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (weight,) = context.saved_tensors
        return torch.matmul(gradient.float(), weight.T), None  # <- odd


hmp.convert(report="lines")
layer, weight = nn.Linear(32, 32), torch.randn(32, 8)
for _ in range(10):
    Product.apply(layer(torch.randn(64, 32)), weight).sum().backward()
