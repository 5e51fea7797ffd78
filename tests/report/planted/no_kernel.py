"""There is no FFT of bfloat16."""

import torch
from torch import nn

from habana_mp import hmp


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.inner(x))
        x = torch.fft.fft2(x).real  # <- odd
        return self.outer(x)


hmp.convert(report="lines")
mixer = Mixer()
for _ in range(10):
    mixer(torch.randn(8, 16, 64)).sum().backward()
