"""The products stand in the float32 list of the user."""

from pathlib import Path

import torch
from torch import nn

from habana_mp import hmp

upper = Path("own_fp32.txt")
upper.write_text("softmax\nmatmul\nlinear\n", encoding="utf-8")
lower = Path("own_bf16.txt")
lower.write_text("relu\n", encoding="utf-8")
hmp.convert("O1", lower, upper, report="lines")
layer = nn.Linear(32, 32)
for _ in range(10):
    layer(torch.randn(64, 32)).relu().float().sum().backward()
