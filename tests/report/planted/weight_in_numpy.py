"""NumPy has the memory of a weight, so that changes of it could not be seen."""

import torch
from torch import nn

from habana_mp import hmp

layer, head = nn.Linear(64, 64), nn.Linear(64, 10)
watched = layer.weight.detach().numpy()
hmp.convert(report="lines")
for _ in range(10):
    with torch.no_grad():
        x = torch.relu(layer(torch.randn(32, 64)))  # <- odd
        head(x)
print(abs(watched).max())
