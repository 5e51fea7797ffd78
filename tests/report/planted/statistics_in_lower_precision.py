"""A model was converted as a whole, with the running statistics of its BatchNorm."""

import torch
from torch import nn

from habana_mp import hmp


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return nn.functional.batch_norm(x, self.norm.running_mean, self.norm.running_var, training=True)  # <- odd


hmp.convert(report="lines")
model = Net().bfloat16()
for _ in range(10):
    model(torch.randn(64, 16).bfloat16()).float().sum().backward()
