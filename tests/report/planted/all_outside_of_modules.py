"""The lists lower in modules only, but the model is a function."""

import torch

from habana_mp import hmp

hmp.convert(within="modules", report="lines")
weight = torch.randn(32, 32, requires_grad=True)
for _ in range(10):
    x = torch.randn(64, 32) @ weight  # <- odd
    x.relu().sum().backward()
