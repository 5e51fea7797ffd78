"""Probabilities in lower precision go into a logarithm."""

import torch
from torch import nn

from habana_mp import hmp

hmp.convert(report="lines")
layer = nn.Linear(16, 1)
for _ in range(10):
    logits = layer(torch.randn(64, 16))
    probability = torch.sigmoid(logits)  # <- odd
    (-torch.log(probability + 1e-6).mean()).backward()
