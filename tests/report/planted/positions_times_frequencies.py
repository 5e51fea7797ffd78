"""Positions are multiplied by frequencies in a forward: the default lists lower the product."""

import torch
from torch import nn

from habana_mp import hmp


class TimeEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.logspace(0, -4, 16))
        self.layer = nn.Linear(32, 32)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        angles = steps[:, None].float() * self.frequencies  # <- odd
        with hmp.disable_casts():
            angles = angles.float()
            embedding = torch.cat([angles.sin(), angles.cos()], -1)
        return self.layer(embedding)


hmp.convert(report="lines")
embed = TimeEmbedding()
for _ in range(10):
    embed(torch.randint(0, 1000, (64,))).float().sum().backward()
