"""Weights are initialised, reset and materialised exactly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_same, assert_unchanged, seeded
from helpers.each import each

BF16, FP32 = torch.bfloat16, torch.float32

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("alike")]


INITIALISERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "uniform": nn.init.uniform_,
    "trunc_normal": nn.init.trunc_normal_,
    "xavier_uniform": nn.init.xavier_uniform_,
    "kaiming_normal": nn.init.kaiming_normal_,
    "orthogonal": lambda x: nn.init.orthogonal_(x, gain=1.7),
    "sparse": lambda x: nn.init.sparse_(x, 0.3),
    "eye": nn.init.eye_,
}


@each("name", INITIALISERS)
def test_initialising_after_construction_is_exact(name: str) -> None:
    def run() -> list[torch.Tensor]:
        return [INITIALISERS[name](torch.empty(shape)) for shape in ((9, 9), (3, 9), (9, 3))]

    assert_unchanged(run)


RESET = [
    nn.LSTM(3, 4),
    nn.Bilinear(3, 3, 3),
    nn.Embedding(4, 5, padding_idx=1),
    nn.Conv2d(3, 3, 3),
    nn.MultiheadAttention(8, 2),
    nn.BatchNorm1d(4),
]


@each("module", RESET)
def test_resetting_parameters_is_exact(module: Any) -> None:
    def run() -> list[torch.Tensor]:
        made = copy.deepcopy(module)
        for one in made.modules():
            getattr(one, "reset_parameters", getattr(one, "_reset_parameters", lambda: None))()
        return list(made.state_dict().values())

    assert_unchanged(run)


@pytest.mark.parametrize("given", [FP32, BF16], ids=str)
def test_lazy_modules_are_materialised_exactly(given: torch.dtype) -> None:
    def run(dtype: torch.dtype) -> list[torch.Tensor]:
        model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
        model(torch.ones(2, 3, 6, 6).to(dtype))
        return list(model.parameters())

    expected = seeded(lambda: run(FP32))
    hmp.convert()
    assert_same(seeded(lambda: run(given)), expected)


def test_a_module_made_without_memory_is_filled_exactly() -> None:
    def run() -> list[torch.Tensor]:
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.LSTM(4, 4))
        assert model[0](torch.ones(2, 4, device="meta")).is_meta
        model = model.to_empty(device="cpu")
        for module in model:
            module.reset_parameters()
        skipped = nn.utils.skip_init(nn.Linear, 3, 4)
        return [*model.parameters(), nn.init.normal_(skipped.weight)]

    assert_unchanged(run)
