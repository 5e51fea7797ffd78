"""One line casts most: a large table that it is given in float32 in each step."""

import torch
from torch import nn

from habana_mp import hmp

hmp.convert(report="lines")
layer, table = nn.Linear(64, 64), torch.randn(20_000, 64)
with torch.no_grad():
    for _ in range(10):
        query = layer(torch.randn(1, 64))
        scores = query @ table.T  # <- odd
        scores.argmax()
