"""Modules as a whole: norms and their statistics, copies, saved models, hooks."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.lists import Converter
from helpers.probes import BF16, FP32, M
from helpers.processes import run_script

pytestmark = pytest.mark.usefixtures("alike")


class Holding(nn.Module):
    """Keeps functions of torch as models do."""

    activations: ClassVar[dict[str, Any]] = {"gelu": F.gelu}

    def __init__(self) -> None:
        super().__init__()
        self.activation = self.activations["gelu"]
        self.also = F.relu
        self.norm = F.normalize
        self.dense = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.also(self.activation(self.dense(x))))


def test_a_model_that_keeps_functions_obeys_and_can_be_copied_and_pickled(converted: Converter) -> None:
    model = Holding()
    expected = model(M)
    converted(bf16=["gelu", "relu"], fp32=["normalize"])
    assert model.activation(M).dtype is model.also(M).dtype is BF16
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    text = pickle.dumps(model)
    lowered = model(M)
    assert lowered.dtype is FP32
    for one in copies:
        assert one.also is F.relu
        assert torch.equal(one(M), lowered)
        assert all(p.dtype is FP32 for p in one.parameters())
    hmp.restore()
    for one in (*copies, pickle.loads(text)):
        assert torch.equal(one(M), expected)


WHOLE = """
import sys, torch
sys.modules["habana_mp"] = None  # importing it raises
models = torch.load(sys.argv[1], weights_only=False)
print({value.dtype for value in models.state_dict().values()} | {model(torch.ones(1, 2, 8)).dtype for model in models})
"""


def test_whole_models_saved_while_converted_are_read_without_us(tmp_path: Path) -> None:
    models = nn.ModuleList(
        nn.TransformerEncoderLayer(8, 2, 16, activation=function).eval() for function in (F.relu, torch.relu, F.gelu)
    )
    hmp.convert()
    for model in models:
        model(torch.ones(1, 2, 8)).sum().backward()
    torch.save(models, tmp_path / "model.pt")
    done = run_script(WHOLE, str(tmp_path / "model.pt"))
    assert (done.returncode, done.stdout) == (0, "{torch.float32}\n"), done.stderr
