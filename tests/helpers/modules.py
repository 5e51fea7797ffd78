"""Runs modules of torch.nn, and compares results and gradients with those of casts by hand."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from helpers.comparing import tensors

BF16, FP32 = torch.bfloat16, torch.float32


def lower(value: Any) -> Any:
    return tree_map(lambda one: one.bfloat16() if isinstance(one, torch.Tensor) and one.dtype is FP32 else one, value)


def assert_near(result: Any, expected: Any, tolerance: float = 0.03) -> None:
    """Asserts that the values are equal up to the precision of bfloat16."""
    got, wanted = tensors(result), tensors(expected)
    assert len(got) == len(wanted) > 0
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        assert (one.float() - other.float()).norm() <= tolerance * (other.float().norm() + 1)


def trained(module: nn.Module, *inputs: Any, **keywords: Any) -> tuple[Any, list[torch.Tensor | None]]:
    """Returns the result of a module, and the gradients of its parameters."""
    module.zero_grad()
    result = module(*inputs, **keywords)
    leaves = [one for one in tensors(result) if one.requires_grad]
    torch.stack([one.float().pow(3).sum() for one in leaves]).sum().backward()
    return tree_map(lambda one: one.detach() if isinstance(one, torch.Tensor) else one, result), [
        parameter.grad for parameter in module.parameters()
    ]


def trained_by_hand(module: nn.Module, *inputs: Any, **keywords: Any) -> tuple[Any, list[torch.Tensor]]:
    """Returns the same results with weights and inputs cast by hand. The gradients are converted to the module's
    float32."""
    result, gradients = trained(copy.deepcopy(module).bfloat16(), *lower(inputs), **keywords)
    return result, [one.float() for one in gradients if one is not None]


def raised(value: Any) -> Any:
    return tree_map(lambda one: one.float() if isinstance(one, torch.Tensor) and one.dtype is BF16 else one, value)
