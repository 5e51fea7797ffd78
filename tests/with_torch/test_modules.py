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
from helpers.comparing import assert_same
from helpers.lists import Converter
from helpers.modules import trained
from helpers.processes import run_script

BF16, FP32 = torch.bfloat16, torch.float32
M = torch.linspace(0.1, 0.9, 16).reshape(4, 4)

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("alike")]


class Holding(nn.Module):
    """Keeps functions of torch as models do."""

    activations: ClassVar[dict[str, Any]] = {"gelu": F.gelu, "relu": torch.relu}

    def __init__(self, name: str = "gelu") -> None:
        super().__init__()
        self.activation = self.activations[name]
        self.also = F.relu
        self.norm = F.normalize
        self.dense = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.also(self.activation(self.dense(x))))


def test_a_model_that_keeps_functions_obeys(converted: Converter) -> None:
    model = Holding()
    converted(bf16=["gelu", "relu"], fp32=["normalize"])
    assert model.activation(M).dtype is BF16
    assert model.also(M).dtype is BF16
    assert model(M).dtype is FP32


def test_a_model_that_keeps_functions_can_be_copied_and_pickled(converted: Converter) -> None:
    model = Holding("relu")
    expected = model(M)
    converted(bf16=["linear", "relu", "normalize"])
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    text = pickle.dumps(model)
    lowered = model(M)
    assert lowered.dtype is BF16
    for one in copies:
        assert one.also is F.relu
        assert torch.equal(one(M), lowered)
        assert all(p.dtype is FP32 for p in one.parameters())
    hmp.restore()
    for one in (*copies, pickle.loads(text)):
        assert torch.equal(one(M), expected)


def test_synchronised_batch_norm_keeps_state_and_runs_in_eval() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU())
    model[0].running_mean.uniform_()
    x = torch.randn(2, 3, 4, 4)
    hmp.convert()
    expected = model.eval()(x)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
    assert isinstance(converted[0], nn.SyncBatchNorm)
    assert_same(converted.state_dict(), model.state_dict())
    assert_same(converted.eval()(x), expected)


@pytest.mark.parametrize(
    "options", [{"momentum": None}, {"track_running_stats": False}, {"affine": False}, {"momentum": 0.3}], ids=str
)
def test_batch_norm_keeps_its_statistics_as_by_hand(options: dict[str, Any]) -> None:
    module = nn.BatchNorm1d(6, **options)
    hand, x = copy.deepcopy(module), [torch.randn(4, 6, 5) * 3 + 1 for _ in range(3)]
    expected = [hand(one.bfloat16()) for one in x]
    hmp.convert()
    assert_same([module(one) for one in x], expected)
    for one, other in zip(module.buffers(), hand.buffers(), strict=True):
        assert torch.equal(one, other)
        assert one.dtype in (FP32, torch.int64)
    evaluated = module.eval()(x[0])
    hmp.restore()
    assert_same(evaluated, hand.eval()(x[0].bfloat16()))


def test_copies_load_and_call_functionally() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    x, state = torch.randn(3, 4), {key: value.clone() for key, value in model.state_dict().items()}
    hmp.convert()
    expected = trained(copy.deepcopy(model), x)
    other = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    other.load_state_dict({key: value.double() for key, value in state.items()})
    assert_same(other.state_dict(), state)
    assert_same(trained(other, x), expected)
    assigned = copy.deepcopy(model)
    assigned.load_state_dict(state, assign=True)
    functional = torch.func.functional_call(model, dict(model.named_parameters()), (x,))
    assert_same(functional, expected[0])
    copied = copy.deepcopy(other)
    assert_same(copied.state_dict(), other.state_dict())


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
