"""All weights are views of one buffer, which the script holds too."""

import torch
from torch import nn

from habana_mp import hmp

hmp.convert(report="lines")
layer = nn.Linear(128, 128)
buffer = torch.randn(128 * 128 + 10)
layer.weight.data = buffer[:-10].view(128, 128)
head = nn.Linear(128, 10)
for _ in range(10):
    x = torch.relu(layer(torch.randn(32, 128)))  # <- odd
    head(x).sum().backward()
    buffer.mul_(0.999)
