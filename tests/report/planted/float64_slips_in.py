"""NumPy's numbers are float64, and so is what a layer is given."""

import numpy
import torch
from torch import nn

from habana_mp import hmp

hmp.convert(report="lines")
layer, mixing = nn.Linear(8, 8), torch.from_numpy(numpy.linspace(0.0, 1.0, 64).reshape(8, 8))
for _ in range(10):
    x = layer(torch.randn(32, 8))
    x.double().matmul(mixing).sum().backward()  # <- odd
