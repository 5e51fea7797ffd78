"""Nobody called convert."""

import torch
from torch import nn

nn.Linear(32, 32)(torch.randn(32, 32)).sum().backward()
