"""A script keeps an average of its losses in a variable: the default lists lower `mul`."""

import torch
from torch import nn

from habana_mp import hmp

hmp.convert(report="lines")
layer = nn.Linear(32, 8)
average = torch.zeros(8)
for _ in range(20):
    result = layer(torch.randn(64, 32)).float()
    result.square().mean().backward()
    average = 0.999 * average + 0.001 * result.detach().mean(0)  # <- odd
