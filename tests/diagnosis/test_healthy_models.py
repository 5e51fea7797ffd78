"""A diagnosis of a healthy model has no finding, whatever the lists lower."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.architectures import make_batch, make_model

Step = Callable[[], torch.Tensor]


def _cnn() -> Step:
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3)),
        *(nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )
    x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    return lambda: F.cross_entropy(model(x), y)


def _lstm() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.body, self.head = (
                nn.Embedding(50, 32),
                nn.LSTM(32, 64, batch_first=True),
                nn.Linear(64, 50),
            )

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(self.embed(words))[0])

    model, words = Model(), torch.randint(0, 50, (8, 40))
    return lambda: F.cross_entropy(model(words).flatten(0, 1), words.flatten())


OWN = {"cnn": _cnn, "lstm": _lstm}
ARCHITECTURES = (("causal", "llama"), ("causal", "mamba"), ("masked", "deberta"), ("seq2seq", "t5"), ("image", "vit"))


@pytest.mark.parametrize("preset", ["recommended", "hmp-default"])
@pytest.mark.parametrize("name", OWN)
def test_a_healthy_model_has_no_finding(name: str, preset: str) -> None:
    torch.manual_seed(0)
    step = OWN[name]()
    hmp.convert(preset=preset)
    found = hmp.diagnose(step)
    assert found.healthy, found
    assert found.rows


@pytest.mark.parametrize(("kind", "architecture"), ARCHITECTURES)
def test_a_healthy_transformer_has_no_finding(kind: str, architecture: str) -> None:
    model = make_model(kind, architecture)
    batch = make_batch(kind, model)
    hmp.convert(preset="hmp-default")
    found = hmp.diagnose(lambda: model(**batch).loss)
    assert found.healthy, found
    assert found.rows
