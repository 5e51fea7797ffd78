"""A block protects itself from torch.autocast."""

import torch
from torch import nn

from habana_mp import hmp


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return x.float() @ self.weight  # <- odd


hmp.convert(report="lines")
layer, router, experts = nn.Linear(64, 64), Router(), nn.Linear(64, 4)
for _ in range(10):
    x = torch.relu(layer(torch.randn(32, 64)))
    (experts(x) * torch.softmax(router(x), -1)).sum().backward()
