"""Vector quantisation: the distances to all codes, by the squares and the product."""

import torch
from torch import nn

from habana_mp import hmp


class Quantiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(8 + torch.randn(64, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares = (x * x).sum(1, keepdim=True), (self.codes * self.codes).sum(1)
        distances = squares[0] - 2 * (x @ self.codes.t()) + squares[1]  # <- odd
        return distances.argmin(1)


hmp.convert(preset="recommended", report="lines")
torch.manual_seed(0)
model = Quantiser()
for _ in range(10):
    near = model.codes.detach()[torch.randint(0, 64, (128,))]
    model(near + 0.1 * torch.randn(128, 16))
