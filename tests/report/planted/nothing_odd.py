"""A plain training loop: nothing is odd."""

import torch
from torch import nn

from habana_mp import hmp

hmp.convert(report="lines")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.arange(32) % 10)
    loss.backward()
    with hmp.disable_casts():
        optimizer.step()
