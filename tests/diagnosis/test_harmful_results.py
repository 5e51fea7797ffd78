"""Planted products whose rounding harms, while their operands' does not: `-> fp32` is the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from habana_mp import hmp


class Experts(nn.Module):
    """A router whose two best scores differ by less than a rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(64, 2, bias=False)
        self.experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        with torch.no_grad():
            self.router.weight.zero_()
            self.router.weight[:, 0] = 1
            self.router.weight[1, 1] = 0.05
            for one in self.experts[1].parameters():
                one.mul_(3)

    def forward(self, x: Tensor) -> Tensor:
        best = self.router(x).argmax(-1)
        return torch.stack([self.experts[int(number)](row) for number, row in zip(best, x, strict=True)])


class Head(nn.Module):
    """Logits near 300, where bfloat16 has steps of 2."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 32)
        self.lm_head = nn.Linear(32, 50)
        with torch.no_grad():
            self.lm_head.bias += 300

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(x))
        made: Tensor = self.lm_head(hidden)
        return made


def loss_of_experts(model: nn.Module, x: Tensor) -> Tensor:
    made: Tensor = model(x).square().mean()
    return made


def loss_of_head(model: nn.Module, x: Tensor) -> Tensor:
    likely = model(x).float().log_softmax(-1)
    return (likely[:, 0] - likely[:, 1]).square().mean()


@pytest.fixture(params=["experts", "head"])
def planted(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor, object, str]:
    torch.manual_seed(0)
    if request.param == "head":
        return Head(), torch.randn(64, 32), loss_of_head, "lm_head"
    x = torch.randn(16, 64)
    x[:, 0], x[:, 1] = 32, 1
    return Experts(), x, loss_of_experts, "router"


def test_diagnose_names_the_product_and_its_result(planted: tuple[nn.Module, Tensor, object, str]) -> None:
    model, x, loss_of, name = planted
    hmp.convert(preset="recommended")
    found = hmp.diagnose(lambda: loss_of(model, x)).findings  # type: ignore[operator]  # a function
    assert [one.rule for one in found] == [{f"linear @ {name}": "lower -> fp32"}]
    assert "with the result of this line in float32" in found[0].text
    assert f"write `linear @ {name} -> fp32` into the list of the lower precision" in found[0].text
    hmp.convert(preset="recommended", rules=found[0].rule)
    assert hmp.diagnose(lambda: loss_of(model, x)).healthy  # type: ignore[operator]  # a function


def test_tune_ends_with_the_result_and_writes_it(
    planted: tuple[nn.Module, Tensor, object, str], tmp_path: Path
) -> None:
    model, x, loss_of, name = planted

    def run(seed: int) -> float:
        torch.manual_seed(seed)
        with torch.no_grad():
            return loss_of(model, x).item()  # type: ignore[operator, no-any-return]  # a function

    tuned = hmp.tune(run, lambda value, exact: abs(value - exact) < 0.05 * abs(exact), preset="recommended", seeds=[0])
    assert tuned.passed
    assert tuned.rules == {f"linear @ {name}": "lower -> fp32"}
    assert "No line is needed in float32, and 1 with a float32 result" in str(tuned)
    tuned.write(tmp_path)
    assert f"# A float32 result: for accuracy.\nlinear @ {name} -> fp32\n" in (tmp_path / "bf16.txt").read_text()
    assert "linear @" not in (tmp_path / "fp32.txt").read_text()
    hmp.convert(preset=str(tmp_path))
    assert run(0) == tuned.values[0][1]
