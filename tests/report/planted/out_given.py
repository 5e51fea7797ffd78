"""A product is told where its result goes."""

import torch
from torch import nn

from habana_mp import hmp

hmp.convert(report="lines")
layer, result, other = nn.Linear(32, 32), torch.empty(64, 32), torch.randn(32, 32)
with torch.no_grad():
    for _ in range(10):
        x = layer(torch.randn(64, 32)).float()
        torch.matmul(x, other, out=result)  # <- odd
