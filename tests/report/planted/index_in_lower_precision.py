"""An index is worked out by a product in lower precision."""

import torch
from torch import nn

from habana_mp import hmp


class Bins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bins = nn.Embedding(1001, 16)
        self.layer = nn.Linear(16, 16)

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        place = torch.floor(share * 1000)
        return self.layer(self.bins(place.long()))  # <- odd


hmp.convert(report="lines")
model = Bins()
for _ in range(10):
    model(torch.rand(64)).float().sum().backward()
