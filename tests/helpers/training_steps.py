"""Two training steps of each of eleven small models, and their reports in files.

``python -m helpers.training_steps FOLDER`` writes those of this process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp
from helpers.architectures import make_batch, make_model

#: Returns a loss.
Step = Callable[[], torch.Tensor]
OF_TRANSFORMERS = {
    "bert": ("masked", 160),
    "llama": ("causal", 160),
    "gpt2": ("causal", 32),
    "t5": ("seq2seq", 32),
    "resnet": ("image", None),
    "convnext": ("image", None),
    "vit": ("image", 32),
}


#: `*` makes rules for all operations, also for those that take a tensor apart.
RULES = {
    "bert": {"* @ bert.pooler": "fp32"},
    "llama": {"* @ lm_head": "fp32"},
    "t5": {"* @ **.DenseReluDense": "bf16"},
    "vit": {"linear @ classifier": "bf16 -> fp32", "* @ **.layernorm_after": "fp32"},
}


class Doubled(torch.autograd.Function):
    """A linear layer of the user's own, with products in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return 2 * F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        gradient = 2 * gradient
        return gradient @ weight, gradient.t() @ x


class Checkpointed(nn.Module):
    """Layers in checkpoints of both kinds, and a function of autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(160, 160), nn.Linear(160, 160), nn.Linear(160, 4)
        self.weight = nn.Parameter(torch.randn(160, 160) / 13)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(checkpoint(self.first, x, use_reentrant=False))
        x = torch.tanh(checkpoint(self.second, x, use_reentrant=True))
        made: torch.Tensor = self.last(Doubled.apply(x, self.weight))
        return made


class Layers(nn.Module):
    """An LSTM, a cell of it, and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.cell = nn.LSTM(64, 64, batch_first=True), nn.GRUCell(64, 64)
        self.attention, self.last = nn.MultiheadAttention(64, 4, batch_first=True), nn.Bilinear(64, 64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, _ = self.lstm(x)
        x, _ = self.attention(x, x, x, need_weights=False)
        made: torch.Tensor = self.last(self.cell(x[:, 0], x[:, 1]), x.mean(1))
        return made


def autoencoder() -> nn.Module:
    return nn.Sequential(
        *[nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()],
        *[nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1)],
    )


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(160, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 96, bias=False), nn.Linear(96, 4)
    )


def training_steps() -> Iterator[tuple[str, nn.Module, Step, dict[str, Any]]]:
    """Yields the name of each model, the model, its step, and options of ``convert``. Some products are small, others
    large enough that the package computes them on a processor without instructions for bfloat16."""
    for name, (kind, width) in OF_TRANSFORMERS.items():
        attribute = {"gpt2": "n_embd", "t5": "d_model"}.get(name, "hidden_size")
        model = make_model(kind, name, **({} if width is None else {attribute: width}))
        batch = make_batch(kind, model)
        yield name, model, lambda m=model, b=batch: m(**b).loss, {"rules": RULES.get(name, {})}
    own: dict[str, tuple[nn.Module, torch.Size | tuple[int, ...], dict[str, Any]]] = {
        "layers": (Layers(), (4, 12, 64), {"rules": {"bmm": "bf16 -> fp32", "* @ last": "fp32"}}),
        "autoencoder": (autoencoder(), (2, 3, 32, 32), {"rules": {"conv2d @ 0": "bf16 -> fp32", "* @ 3": "bf16"}}),
        "perceptron": (perceptron(), (64, 160), {"rules": {"linear": "bf16 -> fp32", "* @ 1": "fp32"}}),
        "checkpointed": (Checkpointed(), (64, 160), {"rules": {"* @ last": "fp32"}}),
    }
    for name, (model, sizes, options) in own.items():
        x = torch.randn(sizes, generator=torch.Generator().manual_seed(1))
        yield name, model, lambda m=model, x=x: m(x.requires_grad_()).float().square().mean(), options


def train(model: nn.Module, step: Step) -> None:
    """Trains two steps, from the same weights and random numbers each time. The weights are those of before
    afterwards."""
    before = {name: one.clone() for name, one in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    torch.manual_seed(2)
    for _ in range(2):
        step().backward()
        with hmp.disable_casts():
            optimizer.step()
            optimizer.zero_grad()
    model.load_state_dict(before)


def main(folder: Path) -> None:
    for name, model, step, options in training_steps():
        for preset, detail in (("recommended", "modules"), ("hmp-default", "lines")):
            hmp.reset_report()
            hmp.convert(preset=preset, report=detail, **options)
            train(model, step)
            hmp.report(show=False).to_json(folder / f"{name}-{detail}.json")
            hmp.restore()


if __name__ == "__main__":
    torch.manual_seed(0)
    main(Path(sys.argv[1]))
