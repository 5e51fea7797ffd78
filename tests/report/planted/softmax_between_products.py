"""Attention by hand: the softmax stands in the float32 list, the products around it in the other one."""

import torch
from torch import nn

from habana_mp import hmp


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(-2, -1)
        weights = scores.softmax(-1)  # <- odd
        return weights @ self.value(x)


hmp.convert(report="lines")
attention = Attention()
for _ in range(40):
    attention(torch.randn(4, 64, 32)).sum().backward()
