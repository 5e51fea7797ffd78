"""Gradients of an operation, through the package's casts and through casts by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from helpers.cases import Case

BF16, FP32 = torch.bfloat16, torch.float32


def leaf(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone().requires_grad_()


def low(value: torch.Tensor) -> torch.Tensor:
    """Casts float32 to bfloat16, as a cast by hand does."""
    return value.to(BF16) if value.dtype is FP32 else value


#: Inputs that have no gradient in torch either.
WITHOUT_GRADIENT = {
    "batch_norm": (3, 4),
    "soft_margin_loss": (1,),
    "fractional_max_pool2d": (1,),
    "fractional_max_pool3d": (1,),
}


def loss_of(result: Any) -> torch.Tensor:
    """Returns one number made from all results that have a gradient. They are squared, so that no gradient is
    constant."""
    outputs = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor) and one.requires_grad]
    real = [torch.view_as_real(one.resolve_conj()) if one.is_complex() else one.to(FP32) for one in outputs]
    return torch.stack([torch.square(one).sum() for one in real]).sum()


def gradients(case: Case, dtype: torch.dtype | None = None) -> list[torch.Tensor | None]:
    """Returns the gradients of all inputs and weights. If ``dtype`` is given, they pass through casts by hand to it."""
    leaves: list[torch.Tensor] = []

    def prepare(value: Any, index: int) -> Any:
        if isinstance(value, nn.Module):
            weights = {name: leaf(one) for name, one in value.named_parameters()}
            leaves.extend(weights.values())
            given = {name: one if dtype is None else one.to(dtype) for name, one in weights.items()}
            return lambda *inputs: torch.func.functional_call(value, given, inputs)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if index not in WITHOUT_GRADIENT.get(case.name, ()):
            leaves.append(value := leaf(value))
        return value if dtype is None or index in case.kept else value.to(dtype)

    inputs = tuple(tree_map(lambda one, i=i: prepare(one, i), value) for i, value in enumerate(case.inputs))
    loss_of(case.run(inputs)).backward()
    for one in leaves:
        assert one.grad is None or one.grad.dtype is one.dtype
    return [one.grad for one in leaves]


def small_layers(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))
