"""A user's list puts a factorization into bfloat16, for which there is no kernel."""

from pathlib import Path

import torch
from torch import nn

from habana_mp import hmp

lower = Path("own_bf16.txt")
lower.write_text("linear\ncholesky\n", encoding="utf-8")
hmp.convert("O1", lower, report="lines")
layer = nn.Linear(16, 16)
for _ in range(10):
    x = layer(torch.randn(64, 16)).float()
    covariance = x.T @ x + 1e-1 * torch.eye(16)
    torch.linalg.cholesky(covariance).sum().backward()  # <- odd
