"""Functions and modules that tests compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

FP32 = torch.float32

torch.manual_seed(0)
M, N = torch.rand(4, 4) + 0.1, torch.rand(4, 4) + 0.1
B3, IMAGE = torch.rand(2, 4, 4), torch.rand(2, 3, 8, 8)
LABELS = torch.tensor([0, 1, 2, 3])


def updated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4, 4)
    total += torch.mm(x, y)
    total.add_(x @ y, alpha=2).mul_(0.5)
    total[1] = (x @ y)[0]
    total[:, 2] *= torch.relu(y)[0]
    total.addcmul_(x, y, value=0.5).addcdiv_(x, y + 1, value=0.25)
    return total


def regions(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    first = torch.mm(x, y)
    with hmp.disable_casts():
        second = torch.mm(x, y)
        with torch.autocast("cpu", enabled=False):
            third = torch.mm(x, y)
    with torch.autocast("cpu", enabled=False):
        fourth = torch.mm(x, y)
    return [first, second, third, fourth, torch.mm(x, y)]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "functions": lambda x, y: torch.softmax(torch.relu(torch.mm(x, y)) + 1, -1),
    "methods": lambda x, y: x.mm(y).relu().softmax(-1).t(),
    "operators": lambda x, y: (x @ y) * x / y + 2 * x - 1 / y**2,
    "out_dtype": lambda x, y: torch.softmax(torch.mm(x, y), -1, dtype=FP32),
    "in place": updated,
    "normalize": lambda x, y: F.normalize(torch.mm(x, y), dim=0),
    "mixed": lambda x, y: torch.cat([x @ y, x]) + torch.stack([x, x @ y])[0].repeat(2, 1),
    "einsum": lambda x, y: torch.einsum("ij,jk->ik", x, y),
    "conv": lambda x, y: F.conv2d(IMAGE, x.reshape(1, 1, 4, 4).expand(2, 3, 4, 4), padding=1),
    "attention": lambda x, y: F.scaled_dot_product_attention(x[None, None], y[None, None], x[None, None]),
    "norms": lambda x, y: F.layer_norm(x, (4,), y[0]) + F.group_norm(B3, 2)[0] + F.instance_norm(B3)[0],
    "batch_norm": lambda x, y: F.batch_norm(x, None, None, training=True),
    "cross_entropy": lambda x, y: F.cross_entropy(x @ y, LABELS),
    "pooling": lambda x, y: F.max_pool2d(IMAGE @ torch.ones(8, 8), 2),
    "number": lambda x, y: (x @ y).masked_fill(x > 0.5, torch.finfo(FP32).min),
    "no kernel": lambda x, y: torch.linalg.inv(x @ y + torch.eye(4) * 9),
    "topk": lambda x, y: torch.topk(x @ y, 2),
    "regions": regions,
}


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.dense = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(F.relu(self.norm(self.conv(x))).mean((2, 3)))
