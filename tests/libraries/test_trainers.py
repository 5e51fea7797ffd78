"""Lightning and Accelerate: each trains as the loop by hand, with the optimizer in float32.

Needs pytorch-lightning and accelerate.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn

from habana_mp import hmp
from helpers.each import each
from helpers.training import loader, network

BF16, FP32 = torch.bfloat16, torch.float32
STEPS, RATE, LIMIT = 3, 1e-2, 0.1


pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    result = model(x)
    assert result.dtype is BF16
    return F.cross_entropy(result, y)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=RATE)


def train_by_hand(accumulate: int = 1, clip: bool = False) -> nn.Module:
    model = network()
    optimizer = adamw(model)
    for number, items in enumerate(loader(STEPS * accumulate), 1):
        loss = loss_of(model, *items)
        (loss / accumulate).backward()
        if number % accumulate == 0:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
            with hmp.disable_casts():
                optimizer.step()
            optimizer.zero_grad()
    return model


def assert_same_weights(actual: nn.Module, expected: nn.Module) -> None:
    for name, one in actual.state_dict().items():
        assert one.dtype is FP32, name
    torch.testing.assert_close(actual.state_dict(), expected.state_dict(), rtol=0, atol=0)


def assert_learned(model: nn.Module, steps: int = STEPS) -> None:
    """By plain torch, over the data of the training."""
    hmp.restore()
    with torch.no_grad():
        losses = [sum(F.cross_entropy(one(x), y).item() for x, y in loader(steps)) for one in (model, network())]
    assert losses[0] < 0.95 * losses[1]


# ---- Lightning -----------------------------------------------------------------------------------------------------


class Lit(pl.LightningModule):
    """As its tutorial writes it: Lightning calls the optimizer, with forward and backward in a closure."""

    def __init__(self) -> None:
        super().__init__()
        self.model = network()

    def training_step(self, items: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        return loss_of(self.model, *items)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return adamw(self)


class ByHand(Lit):
    """Lightning's "manual optimization"."""

    automatic_optimization = False

    def training_step(self, items: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss_of(self.model, *items))
        with hmp.disable_casts():
            optimizer.step()


def trainer(root: Path, **options: Any) -> pl.Trainer:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return pl.Trainer(accelerator="cpu", default_root_dir=root, **{**quiet, "max_epochs": 1, **options})


@pytest.mark.parametrize("kind", [Lit, ByHand])
def test_lightning_trains_as_the_loop_by_hand(kind: type[Lit], tmp_path: Path) -> None:
    hmp.convert()
    module = kind()
    trainer(tmp_path).fit(module, loader())
    assert_same_weights(module.model, train_by_hand())
    assert_learned(module.model)


# ---- Accelerate ----------------------------------------------------------------------------------------------------


def accelerate(accumulate: int = 1, clip: bool = False, casts_off: bool = True, **options: Any) -> nn.Module:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate, **options)
    model = network()
    model, optimizer, batches = accelerator.prepare(model, adamw(model), loader(STEPS * accumulate))
    for x, y in batches:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(x), y))
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), LIMIT)
            with hmp.disable_casts() if casts_off else contextlib.nullcontext():
                optimizer.step()
            optimizer.zero_grad()
    return accelerator.unwrap_model(model)


@pytest.mark.usefixtures("fresh_accelerate")
@each("casts_off", [True, False])
@each("options", [{}, {"accumulate": 2}, {"clip": True}])
def test_accelerate_trains_as_the_loop_by_hand(options: dict[str, Any], casts_off: bool) -> None:
    hmp.convert()
    model = accelerate(**options, casts_off=casts_off)
    assert_same_weights(model, train_by_hand(**options))
    assert_learned(model, STEPS * options.get("accumulate", 1))
