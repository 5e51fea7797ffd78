"""A model whose outputs tell in which precision each of its parts ran, and the ways to steer one part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32

#: Both operations of a part are lowered, where no rule says otherwise.
LOWERED = (BF16, BF16)

#: What steers, and the precisions of the product and the softmax of the part that is steered.
STEERED = {
    "operation": (BF16, FP32),
    "every": (FP32, FP32),
    "keep": (FP32, FP32),
}

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


def rules_for(how: str, path: str) -> dict[str, Any] | None:
    """Returns the rules that steer the module at a path to float32."""
    return {"operation": {f"softmax @ {path}": "fp32"}, "every": {f"* @ {path}": "fp32"}, "keep": None}[how]


def steer(convert: Callable[..., None], how: str, model: nn.Module, path: str) -> None:
    """Converts, and steers the module of the model at a path to float32."""
    if how == "keep":
        hmp.keep(model.get_submodule(path))
    convert(bf16=["linear", "softmax"], rules=rules_for(how, path))


def precisions(outputs: Any) -> list[tuple[torch.dtype, ...]]:
    return [tuple(one.dtype for one in part) for part in outputs]
