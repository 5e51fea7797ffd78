"""Products of four by four, trained: their casts take a good part of their time."""

import torch
from torch import nn

from habana_mp import hmp


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.eye(4))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            points = points.float() @ self.turn  # <- odd
        return points


hmp.convert(preset="recommended", report="lines")
model = Turned()
for _ in range(100):
    model(torch.randn(4, 4)).float().sum().backward()
