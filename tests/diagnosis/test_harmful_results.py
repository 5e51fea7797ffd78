"""A planted product whose rounding harms, while its operands' does not: `-> fp32` is the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from habana_mp import hmp
from helpers.models import Calls


@pytest.fixture
def loss() -> Callable[[], Tensor]:
    """Its logits are near 300, where bfloat16 has steps of 2."""
    torch.manual_seed(0)
    inner, lm_head = nn.Linear(32, 32), nn.Linear(32, 50)
    with torch.no_grad():
        lm_head.bias += 300

    def logits(x: Tensor) -> Tensor:
        hidden = torch.tanh(inner(x))
        return lm_head(hidden)

    model, x = Calls(logits, inner=inner, lm_head=lm_head), torch.randn(64, 32)

    def of_head() -> Tensor:
        likely = model(x).float().log_softmax(-1)
        return (likely[:, 0] - likely[:, 1]).square().mean()

    return of_head


def test_diagnose_names_the_product_and_its_result(loss: Callable[[], Tensor]) -> None:
    hmp.convert(preset="recommended")
    found = hmp.diagnose(loss).findings
    assert [one.rule for one in found] == [{"linear @ lm_head": "lower -> fp32"}]
    assert "with the result of this line in float32" in found[0].text
    assert "write `linear @ lm_head -> fp32` into the list of the lower precision" in found[0].text
    hmp.convert(preset="recommended", rules=found[0].rule)
    assert hmp.diagnose(loss).healthy


def test_tune_ends_with_the_result_and_writes_it(loss: Callable[[], Tensor], tmp_path: Path) -> None:
    def run(seed: int) -> float:
        torch.manual_seed(seed)
        with torch.no_grad():
            return loss().item()

    tuned = hmp.tune(run, lambda value, exact: abs(value - exact) < 0.05 * abs(exact), preset="recommended", seeds=[0])
    assert tuned.passed
    assert tuned.rules == {"linear @ lm_head": "lower -> fp32"}
    assert "No line is needed in float32, and 1 with a float32 result" in str(tuned)
    tuned.write(tmp_path)
    assert "# A float32 result: for accuracy.\nlinear @ lm_head -> fp32\n" in (tmp_path / "bf16.txt").read_text()
    assert "linear @" not in (tmp_path / "fp32.txt").read_text()
    hmp.convert(preset=str(tmp_path))
    assert run(0) == tuned.values[0][1]


# ---- solutions and differences --------------------------------------------------------------------------------------


class Fit(nn.Module):
    """Fits features to targets in its forward, by factors of a system that products make."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.targets = nn.Linear(16, 12, bias=False), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.features(x)
        system = found.mT @ found + 1e-2 * torch.eye(12, dtype=found.dtype)
        factors, pivots = torch.linalg.lu_factor(system)
        return torch.linalg.lu_solve(factors, pivots, found.mT @ self.targets(x).to(found.dtype))


def test_a_module_that_solves_a_system_is_one_finding_that_says_what_remains() -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 16))
    model = nn.Sequential()
    model.encoder, model.fit = encoder, Fit()
    x, y = torch.randn(8, 40, 8), torch.randn(8, 12, 3)

    def step() -> torch.Tensor:
        return F.mse_loss(Calls(lambda x: model.fit(model.encoder(x)).float(), model=model)(x), y)

    hmp.convert(preset="recommended")
    found = hmp.diagnose(step)
    (one,) = found.findings
    assert (one.operation, one.rule) == ("linalg_lu_solve", {"* @ model.fit": "fp32"})
    assert "it solves a system that lower precision has rounded, and multiplies the rounding; " in one.text
    remains = re.search(r"and with its module in float32 by ([\d.]+) %", one.text)
    assert remains is not None
    assert 0 < float(remains[1]) < 17  # the encoder's rounding
    assert one.effect > 0.1
    hmp.convert(preset="recommended", rules=dict(one.rule))
    assert hmp.diagnose(step).healthy


def test_a_module_that_solves_a_system_and_harms_nothing_is_no_finding() -> None:
    torch.manual_seed(0)
    model, x, y = (
        Calls(
            lambda x: torch.linalg.solve(model.first(x).square().diag_embed() + 9 * torch.eye(8), x),
            first=nn.Linear(8, 8),
        ),
        torch.randn(4, 8),
        torch.randn(4, 8),
    )
    hmp.convert(preset="recommended")
    found = hmp.diagnose(lambda: F.mse_loss(model(x).float(), y))
    assert found.healthy


def test_of_a_difference_of_results_the_line_that_keeps_its_sum_is_named_and_what_remains() -> None:
    torch.manual_seed(0)
    model = Calls(
        lambda x: model.head(F.silu(model.body(x)).flatten(1)), body=nn.Conv1d(4, 32, 5), head=nn.Linear(32 * 196, 1)
    )
    model.head.bias.data += 30
    x = torch.randn(1, 4, 200)
    changed = x.repeat(24, 1, 1)
    changed[range(24), :, range(20, 140, 5)] += 1

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(changed) - model(x)

    hmp.convert(preset="recommended")
    (one,) = hmp.diagnose(step).findings
    assert one.rule == {"linear @ head": "lower -> fp32"}
    assert re.search(r"is wrong by .* and with the result of this line in float32 by [\d.]+ %", one.text)
