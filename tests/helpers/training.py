"""A small network, and the batches that it is trained on, which are always the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 3


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8))


def loader(steps: int = STEPS) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8 * steps, 16, generator=generator), torch.randint(0, 8, (8 * steps,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=8)
