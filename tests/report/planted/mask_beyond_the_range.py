"""A mask is filled with a number that float16 does not have."""

import torch
from torch import nn

from habana_mp import hmp

hmp.convert(dtype="float16", report="lines")
layer, later = nn.Linear(32, 32), torch.ones(32, 32).triu(1).bool()
with torch.no_grad():
    for _ in range(10):
        scores = layer(torch.randn(32, 32))
        scores = scores.masked_fill(later, -1e9)  # <- odd
        scores.softmax(-1)
