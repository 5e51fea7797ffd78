"""A weight is clipped in each step of an evaluation, so that its cast is made anew in each."""

import torch
from torch import nn

from habana_mp import hmp

hmp.convert(report="lines")
layer, head = nn.Linear(256, 256), nn.Linear(256, 10)
with torch.no_grad():
    for _ in range(20):
        layer.weight.clamp_(-0.1, 0.1)
        x = torch.relu(layer(torch.randn(4, 256)))  # <- odd
        head(x)
