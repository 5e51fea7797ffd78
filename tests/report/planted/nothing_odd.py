"""A plain training loop: nothing is odd."""

import torch
from torch import nn

from habana_mp import hmp

hmp.convert(report="lines")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randn(256, 256)), torch.arange(256) % 10)
    loss.backward()
    with hmp.disable_casts():
        optimizer.step()
