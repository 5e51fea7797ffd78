"""A loss keeps an average of products between its calls, as an attribute."""

import torch
from torch import nn

from habana_mp import hmp


class Covariance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.average = None
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        product = x.t() @ x
        if self.average is None:
            self.average = product.new_zeros(product.shape)
        average = self.average.lerp(product, 0.1)  # <- odd
        self.average = average.detach()
        return average.float().square().sum()


hmp.convert(preset="recommended", report="lines")
model = Covariance()
for _ in range(10):
    model(torch.randn(64, 16)).backward()
