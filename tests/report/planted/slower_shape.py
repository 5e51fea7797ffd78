"""A shape that was measured to be slower in bfloat16; here the measurement is told what to find."""

import torch
from torch import nn

from habana_mp import _core, hmp

_core.assume_that_lowering_pays(0)
hmp.convert(skip_slower=True, report="lines")
layer = nn.Linear(32, 16)
with torch.no_grad():
    for _ in range(12):
        layer(torch.randn(1, 32))  # <- odd
