"""Metrics are what they are in float32, whatever list lowers what a model computes.

Needs torchmetrics.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torchmetrics
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_same

BF16 = torch.bfloat16
WITHINS = [None, "modules"]

torch.manual_seed(0)
TARGETS = 10 + 3 * torch.randn(500)
PREDICTIONS = TARGETS + torch.randn(500)
SCORES = torch.randn(500)
LABELS = (SCORES + torch.randn(500) > 0).long()


class Own(torchmetrics.Metric):
    """A metric written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, predictions: torch.Tensor, targets: torch.Tensor) -> None:
        self.total = self.total + (predictions * targets).sum()

    def compute(self) -> torch.Tensor:
        return self.total * (1 / 500)


METRICS: dict[str, tuple[Any, torch.Tensor, torch.Tensor]] = {
    "R2Score": (torchmetrics.R2Score, PREDICTIONS, TARGETS),
    "PearsonCorrCoef": (torchmetrics.PearsonCorrCoef, PREDICTIONS, TARGETS),
    "AUROC": (lambda: torchmetrics.AUROC(task="binary"), SCORES, LABELS),
    "MeanSquaredError": (torchmetrics.MeanSquaredError, PREDICTIONS, TARGETS),
    "one of one's own": (Own, PREDICTIONS, TARGETS),
}
FUNCTIONS: dict[str, tuple[Any, torch.Tensor, torch.Tensor]] = {
    "r2_score": (torchmetrics.functional.r2_score, PREDICTIONS, TARGETS),
    "pearson_corrcoef": (torchmetrics.functional.pearson_corrcoef, PREDICTIONS, TARGETS),
    "auroc": (lambda *given: torchmetrics.functional.auroc(*given, task="binary"), SCORES, LABELS),
    "cosine_similarity": (
        lambda one, other: torchmetrics.functional.cosine_similarity(one[:, None], other[:, None]),
        PREDICTIONS,
        TARGETS,
    ),
}


def measured(metric: Any, given: torch.Tensor, wanted: torch.Tensor) -> list[torch.Tensor]:
    """By each way that a metric is used: batch by batch, called as a module, and at last."""
    batch = metric(given[:250], wanted[:250])
    metric.update(given[250:], wanted[250:])
    return [batch, metric.compute()]


@pytest.mark.parametrize("within", WITHINS)
@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_that_of_plain_torch(name: str, within: Any) -> None:
    make, given, wanted = METRICS[name]
    expected = measured(make(), given, wanted)
    hmp.convert(within=within)
    assert_same(measured(make(), given, wanted), expected)


@pytest.mark.parametrize("name", ["R2Score", "PearsonCorrCoef", "AUROC", "MeanSquaredError"])
def test_a_metric_made_before_convert_is_that_of_plain_torch(name: str) -> None:
    make, given, wanted = METRICS[name]
    expected, metric = measured(make(), given, wanted), make()
    hmp.convert()
    assert_same(measured(metric, given, wanted), expected)


@pytest.mark.parametrize("within", WITHINS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_metric_as_a_function_is_that_of_plain_torch(name: str, within: Any) -> None:
    function, given, wanted = FUNCTIONS[name]
    expected = function(given, wanted)
    hmp.convert(within=within)
    assert_same(function(given, wanted), expected)


@pytest.mark.parametrize("within", WITHINS)
@pytest.mark.parametrize("name", METRICS)
def test_what_a_model_computed_lower_is_measured_in_float32(name: str, within: Any) -> None:
    make, given, wanted = METRICS[name]
    model = nn.Linear(1, 1)
    hmp.convert(within=within)
    lowered = model(given[:, None])[:, 0]
    assert lowered.dtype is BF16
    results = measured(make(), lowered.detach(), wanted)
    hmp.restore()
    assert_same(results, measured(make(), lowered.detach().float(), wanted))


def test_a_metric_within_a_model_is_that_of_plain_torch() -> None:
    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.metric = torchmetrics.R2Score()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.metric(x, y)

    expected = Watched()(PREDICTIONS, TARGETS)
    hmp.convert(within="modules")
    assert_same(Watched()(PREDICTIONS, TARGETS), expected)


def test_a_metric_made_while_casts_were_on_is_copied_pickled_and_used_after_restore() -> None:
    expected = measured(torchmetrics.R2Score(), PREDICTIONS, TARGETS)
    hmp.convert()
    metric = torchmetrics.R2Score()
    for one in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert_same(measured(one, PREDICTIONS, TARGETS), expected)
    hmp.restore()
    assert_same(measured(metric, PREDICTIONS, TARGETS), expected)
