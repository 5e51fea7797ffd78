"""Around one block of a model somebody turned casts off, and left it so."""

import torch
from torch import nn

from habana_mp import hmp


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        with hmp.disable_casts():
            x = self.second(x.float())  # <- odd
        return self.third(torch.relu(x))


hmp.convert(report="lines")
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(10):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.arange(32) % 10)
    loss.backward()
    with hmp.disable_casts():
        optimizer.step()
