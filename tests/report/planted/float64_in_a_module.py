"""A constant of NumPy is float64, and what it meets in a forward is left alone."""

import numpy
import torch
from torch import nn

from habana_mp import hmp


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.scale = torch.from_numpy(numpy.linspace(0.5, 1.0, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return (x * self.scale).float()  # <- odd


hmp.convert(report="lines")
model = Scaled()
for _ in range(10):
    model(torch.randn(64, 16)).sum().backward()
