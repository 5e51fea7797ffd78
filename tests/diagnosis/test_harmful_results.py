"""A planted product whose rounding harms, while its operands' does not: `-> fp32` is the remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
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
