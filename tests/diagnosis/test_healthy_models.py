"""A diagnosis of a healthy model has no finding, whatever the lists lower."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.architectures import make_batch, make_model
from helpers.models import Calls

MODELS = (("causal", "llama"), ("causal", "mamba"), ("masked", "deberta"), ("seq2seq", "t5"), ("image", "resnet"))


@pytest.mark.parametrize("preset", ["recommended", "hmp-default"])
def test_a_healthy_recurrent_model_has_no_finding(preset: str) -> None:
    torch.manual_seed(0)
    embed, body, head = nn.Embedding(50, 32), nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 50)
    model = Calls(lambda words: head(body(embed(words))[0]), embed=embed, body=body, head=head)
    words = torch.randint(0, 50, (8, 40))
    hmp.convert(preset=preset)
    found = hmp.diagnose(lambda: F.cross_entropy(model(words).flatten(0, 1), words.flatten()))
    assert found.healthy, found
    assert found.rows


@pytest.mark.parametrize(("kind", "architecture"), MODELS)
def test_a_healthy_architecture_has_no_finding(kind: str, architecture: str) -> None:
    model = make_model(kind, architecture)
    batch = make_batch(kind, model)
    hmp.convert(preset="hmp-default")
    found = hmp.diagnose(lambda: model(**batch).loss)
    assert found.healthy, found
    assert found.rows
