"""Products of three and more dimensions in graphs: torch folds them into rows, but not for all strides."""

from __future__ import annotations

import torch


def in_rows(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Returns the first factor of a product in a graph, copied if torch would not fold its dimensions into rows.

    In eager code the core does this (``multiply`` in src/accel/products/own_products.cpp)."""
    if tensor.dim() < 3 or other.dim() != 2 or tensor.device.type != "cpu":
        return tensor
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # takes long to import

    expected = None
    for size, stride in reversed([*zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)]):
        if statically_known_true(size == 1):
            continue
        if expected is not None and not statically_known_true(stride == expected):
            return tensor.contiguous()
        expected = size * stride
    return tensor
