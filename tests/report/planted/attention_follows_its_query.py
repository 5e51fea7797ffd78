"""The queries are scaled by a float32 table, so that the whole attention runs in float32."""

import torch
from torch import nn

from habana_mp import hmp


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all = nn.Linear(32, 96)
        self.register_buffer("table", torch.rand(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.all(x).view(2, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        query = query + self.table
        return nn.functional.scaled_dot_product_attention(query, key, value)  # <- odd


hmp.convert(report="lines")
attention = Attention()
for _ in range(10):
    attention(torch.randn(2, 16, 32)).sum().backward()
