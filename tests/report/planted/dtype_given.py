"""A softmax is told its precision by the call."""

import torch
from torch import nn

from habana_mp import hmp

hmp.convert(report="lines")
layer, outer = nn.Linear(32, 32), nn.Linear(32, 32)
for _ in range(10):
    x = layer(torch.randn(64, 32))
    x = torch.softmax(x, dim=-1, dtype=torch.float32)  # <- odd
    outer(x).sum().backward()
