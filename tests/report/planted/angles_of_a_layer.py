"""A layer computes angles of a time in seconds, as encoders of time do."""

import torch
from torch import nn

from habana_mp import hmp


class TimeEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 32)

    def forward(self, seconds: torch.Tensor) -> torch.Tensor:
        angles = self.layer(seconds[:, None])
        return torch.cos(angles)  # <- odd


hmp.convert(preset="torch-cpu", report="lines")
encode = TimeEncoder()
for _ in range(10):
    encode(500 * torch.rand(64)).float().sum().backward()
