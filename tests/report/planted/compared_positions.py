"""A mask is made by comparing positions that a product in lower precision has rounded."""

import torch
from torch import nn

from habana_mp import hmp


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        positions = torch.ones(x.shape[1]).cumsum(0) * 2.0
        mask = positions <= ends[:, None]  # <- odd
        return self.layer(x).masked_fill(~mask[..., None], 0.0)


hmp.convert(report="lines")
model = Masked()
for _ in range(10):
    model(torch.randn(4, 600, 16), torch.randint(0, 1000, (4,))).float().sum().backward()
