"""A model whose outputs show the precision in which each of its parts ran, and the ways to steer one part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32

#: Both operations of a part are lowered if no rule keeps them in float32.
LOWERED = (BF16, BF16)

#: The ways to steer, and the precisions of the product and the softmax of the steered part.
STEERED = {
    "operation": (BF16, FP32),
    "every": (FP32, FP32),
    "keep": (FP32, FP32),
    "exact": (BF16, FP32),  # the product is made by the code of nn.Linear
}

#: These ways steer a module at one path. The other ways steer the module wherever it is called.
BY_PATH = ("operation", "every")

Outputs = tuple[torch.Tensor, torch.Tensor]


class Part(nn.Module):
    """Returns a product and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)
        #: The precisions of each run of the forward, if it is a list.
        self.seen: list[tuple[torch.dtype, torch.dtype]] | None = None

    def forward(self, x: torch.Tensor) -> Outputs:
        product, probabilities = self.proj(x), torch.softmax(x, -1)
        if self.seen is not None:
            self.seen.append((product.dtype, probabilities.dtype))
        return product, probabilities


class ExactPart(Part):
    """A part with code of its own, which `exact=` can name."""

    def forward(self, x: torch.Tensor) -> Outputs:
        product, probabilities = self.proj(x), torch.softmax(x, -1)
        if self.seen is not None:
            self.seen.append((product.dtype, probabilities.dtype))
        return product, probabilities


class Holder(nn.Module):
    def __init__(self, inner: Part) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Outputs:
        outputs: Outputs = self.inner(x)
        return outputs


class Net(nn.Module):
    """Two parts one after the other in a list, and one part that two holders share."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Part(), Part()])
        shared = Part()
        self.left, self.right = Holder(shared), Holder(shared)

    def forward(self, x: torch.Tensor) -> tuple[Outputs, ...]:
        return (*(layer(x) for layer in self.layers), self.left(x), self.right(x))


def network() -> Net:
    torch.manual_seed(0)
    return Net()


def inputs() -> torch.Tensor:
    return torch.linspace(-1, 1, 32).reshape(4, 8)


def options_for(how: str, model: nn.Module, path: str) -> dict[str, Any]:
    """Returns the options of convert that steer the module of the model at a path to float32. If the way needs this,
    keeps the module or gives it exact code."""
    module = model.get_submodule(path)
    if how == "keep":
        hmp.keep(module)
    if how == "exact":
        module.__class__ = ExactPart
        return {"exact": [ExactPart]}
    return {"rules": {"operation": {f"softmax @ {path}": "fp32"}, "every": {f"* @ {path}": "fp32"}}.get(how)}


def steer(convert: Callable[..., None], how: str, model: nn.Module, path: str) -> None:
    """Converts, and steers the module of the model at a path to float32."""
    convert(bf16=["linear", "softmax"], **options_for(how, model, path))


def precisions(outputs: Any) -> list[tuple[torch.dtype, ...]]:
    return [tuple(one.dtype for one in part) for part in outputs]
