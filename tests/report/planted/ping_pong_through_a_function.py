"""A function with a backward of its own calls an operation of the float32 list between products."""

import torch
from torch import nn

from habana_mp import hmp


class Weights(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores):
        weights = torch.softmax(scores, -1)  # <- odd
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, gradient):
        (weights,) = ctx.saved_tensors
        gradient = gradient * weights
        return gradient - weights * gradient.sum(-1, keepdim=True)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(-2, -1)
        return Weights.apply(scores) @ self.value(x)


hmp.convert(report="lines")
attention = Attention()
for _ in range(40):
    attention(torch.randn(4, 64, 32)).float().sum().backward()
