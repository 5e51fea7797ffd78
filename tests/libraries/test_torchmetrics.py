"""Metrics are what they are in float32, whatever list lowers what a model computes.

Needs torchmetrics.
"""

from __future__ import annotations

from typing import Any

import torch
import torchmetrics
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_same, assert_unchanged
from helpers.each import each

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
    "AUROC": (lambda: torchmetrics.AUROC(task="binary"), SCORES, LABELS),
    "one of one's own": (Own, PREDICTIONS, TARGETS),
}


def measured(metric: Any, given: torch.Tensor, wanted: torch.Tensor) -> list[torch.Tensor]:
    """By each way that a metric is used: batch by batch, called as a module, and at last."""
    batch = metric(given[:250], wanted[:250])
    metric.update(given[250:], wanted[250:])
    return [batch, metric.compute()]


@each("within", WITHINS)
@each("name", METRICS)
def test_a_metric_is_that_of_plain_torch(name: str, within: Any) -> None:
    make, given, wanted = METRICS[name]
    assert_unchanged(lambda: measured(make(), given, wanted), within=within)


@each("within", WITHINS)
@each("name", METRICS)
def test_what_a_model_computed_lower_is_measured_in_float32(name: str, within: Any) -> None:
    make, given, wanted = METRICS[name]
    model = nn.Linear(1, 1)
    hmp.convert(within=within)
    lowered = model(given[:, None])[:, 0]
    assert lowered.dtype is BF16
    results = measured(make(), lowered.detach(), wanted)
    hmp.restore()
    assert_same(results, measured(make(), lowered.detach().float(), wanted))
