"""Weights, and their cached casts."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from habana_mp import hmp

MODES: dict[str, Callable[[], Any]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def weight(*shape: int, requires_grad: bool = True) -> nn.Parameter:
    torch.manual_seed(0)
    return nn.Parameter(torch.randn(*shape), requires_grad=requires_grad)


def casts() -> int:
    """Returns the number of casts that were made."""
    return sum(row.casts for row in hmp.report(show=False))


def cached() -> hmp.CachedWeights:
    return hmp.report(show=False).weights


def products() -> int:
    """Returns the number of products with weights that the package's kernels computed."""
    return cached().products


def all_bfloat16_tensors() -> list[torch.Tensor]:
    """Returns all bfloat16 tensors, also those that only C++ holds: cached casts, and buffers."""
    found = [one for one in gc.get_objects() if type(one) is torch.Tensor]
    return [one for one in found if one.dtype is torch.bfloat16 and not one.is_nested]
