"""opt_level="O0", given in the call or by the environment: nothing is cast, and all else is as it is with casts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import hmp
from helpers.each import each

X = torch.linspace(-1, 1, 32).reshape(4, 8)
BF16, FP32 = torch.bfloat16, torch.float32

pytestmark = pytest.mark.usefixtures("counted")


@pytest.fixture(params=["call", "environment"])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of convert for O0, or none where the environment asks for it."""
    if request.param == "call":
        return {"opt_level": "O0"}
    monkeypatch.setenv("HABANA_MP_OPT_LEVEL", "O0")
    return {}


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Softmax(-1), nn.Linear(8, 2))


def step(net: nn.Module) -> torch.Tensor:
    loss = nn.functional.mse_loss(net(X), torch.zeros(4, 2))
    loss.backward()
    return loss


@each("detail", ["operations", "modules", "lines"])
@each("given", [{}, {"preset": "recommended"}, {"opt_level": "O2"}])
def test_its_report_compares_with_that_of_the_other_run(
    detail: Any, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HABANA_MP_OPT_LEVEL", raising=False)
    hmp.convert(**given, report=detail)
    step(model())
    lower = hmp.report(show=False)
    hmp.restore()
    hmp.reset_report()
    monkeypatch.setenv("HABANA_MP_OPT_LEVEL", "O0")
    hmp.convert(**given, report=detail)
    step(model())
    without = hmp.report(show=False)
    assert without.detail == detail
    compared = hmp.compare(lower, without)
    found = {(pair.a["operation"], pair.a["module"]) for pair in compared.pairs}
    assert {one for one, _ in found} >= {"linear", "layer_norm"}
    assert {pair.b["precision"] for pair in compared.pairs} == {"unchanged"}
    assert not compared.new
    assert all(row["reason"] == "unlisted" for row in compared.gone)  # their inputs are in float32 now
    assert without.words[0] == 'Nothing ran in lower precision: opt_level="O0" casts nothing'


def test_nothing_is_cast(level: dict[str, Any]) -> None:
    net = model()
    expected = net(X)
    hmp.convert(**level, report="lines", guard=True, rules=None)
    assert torch.equal(net(X), expected)
    with pytest.raises(RuntimeError):
        torch.mm(X.bfloat16(), X.t())
    assert torch.exp(X.bfloat16()).dtype is BF16
    with pytest.raises(TypeError):
        X.bfloat16().numpy()
    assert net.bfloat16()(X.bfloat16()).dtype is BF16
    assert not any(row.casts for row in hmp.report(show=False))
    assert hmp.explain("linear").reason == "off"
    assert hmp.report(show=False).weights.products == 0


def test_the_results_of_models_stay_as_they_are(level: dict[str, Any]) -> None:
    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.bfloat16()

    hmp.convert(**level, results="fp32", within="modules", report="modules")
    assert Own()(X).dtype is BF16


def test_the_guard_names_what_makes_a_value_that_is_not_finite(level: dict[str, Any]) -> None:
    hmp.convert(**level, guard=1.0)
    with pytest.warns(hmp.HmpWarning, match="exp"):
        torch.exp(100 * torch.ones(4, 4))


def test_the_log_has_each_call(level: dict[str, Any], tmp_path: Path) -> None:
    hmp.convert(**level, log=tmp_path / "log.jsonl")
    torch.mm(X, X.t())
    hmp.restore()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text("utf-8").splitlines()]
    found = [(one["operation"], one["precision"], one["reason"]) for one in lines if one["kind"] == "operation"]
    assert ("mm", "unchanged", "level") in found


def test_regions_count_and_cast_nothing_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HABANA_MP_OPT_LEVEL", "O0")
    with hmp.watch("modules"), hmp.autocast("cpu", dtype="bf16", preset="torch-cpu"):
        assert torch.mm(X, X.t()).dtype is FP32
        assert not hmp.is_autocast_enabled()
        with pytest.raises(TypeError):
            X.bfloat16().numpy()
    (row,) = hmp.report(show=False)
    assert (row.operation, row.precision, row.reason) == ("mm", "unchanged", "level")


def test_where_casts_are_disabled_the_watch_says_so_as_in_the_other_run(level: dict[str, Any]) -> None:
    hmp.convert(**level, report="modules")
    with hmp.disable_casts():
        torch.mm(X, X.t())
    (row,) = hmp.report(show=False)
    assert row.reason == "disabled"
