"""Tuning returns the planted culprits and nothing else, keeps to its budget, and goes on where it stopped."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from habana_mp.diagnosis.sites import Site
from habana_mp.reporting.records import Row
from habana_mp.tuning.configurations import Rules
from habana_mp.tuning.tune import _RunsHere, tuned_by
from helpers.models import Calls

FULL = torch.rand(4, 4) + 0.5


class Net(nn.Module):
    """A model with two culprits among many operations: the angles, and the normalised features."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.1, 1.0, 16))
        self.body = nn.Sequential(nn.Linear(40, 64), nn.SiLU(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        angles = t[:, None] * self.scale
        centred = F.layer_norm(x, (8,))
        y = torch.cat([angles.float().sin(), angles.float().cos(), centred.float()], -1)
        return self.body(y).tanh().float()


def _value(seed: int) -> list[float]:
    """Returns predictions of a model with random weights."""
    torch.manual_seed(seed)
    model = Net()
    t, x = torch.empty(256).uniform_(0, 1000), 1000 + torch.randn(256, 8)
    with torch.no_grad():
        return model(t, x).squeeze(-1).tolist()


def _is_close(value: list[float], exact: list[float]) -> bool:
    error = torch.tensor(value) - torch.tensor(exact)
    return float(error.norm() / torch.tensor(exact).norm()) < 0.1


CALLS: list[int] = []


def _counted(run: Callable[[int], Any]) -> Callable[[int], Any]:
    def counting(seed: int) -> Any:
        CALLS.append(seed)
        return run(seed)

    CALLS.clear()
    return counting


# ---- what it finds ---------------------------------------------------------------------------------------------------


def test_exactly_the_planted_culprits_are_kept() -> None:
    found = hmp.tune(_value, _is_close, seeds=(0, 1))
    assert found.passed
    assert found.rules == {"mul @ Net": "fp32", "layer_norm @ Net": "fp32"}
    assert found.is_minimal
    assert 4 < found.runs < 40
    assert found.speedup > 0
    assert set(found.values) == {0, 1}
    assert not hmp.is_converted()
    text = str(found)
    assert text.startswith("2 lines are needed in float32; the result is ")
    assert "  mul @ Net: in float32 for accuracy" in text


def test_a_training_that_needs_nothing_gets_no_rules() -> None:
    def trained(seed: int) -> float:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        optimizer, x = torch.optim.Adam(model.parameters(), lr=1e-2), torch.randn(128, 8)
        for _ in range(40):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x).float(), x[:, :1])
            loss.backward()
            optimizer.step()
        return loss.item()

    found = hmp.tune(trained, lambda value, exact: value <= 1.2 * exact + 0.01)
    assert (found.passed, found.rules) == (True, {})
    assert str(found).startswith("No line is needed in float32")


def test_a_value_that_no_lists_reach_is_told() -> None:
    found = hmp.tune(lambda seed: float((FULL @ FULL).sum()), lambda value, exact: False, seeds=(0,))
    assert not found.passed
    assert found.rules == {}
    assert str(found).startswith("No lists were found whose value is good enough")


def test_one_of_many_equal_modules_is_told_apart() -> None:
    def layer(offset: float) -> nn.Module:
        return Calls(lambda x: ((x + offset) * 1.0).float() - offset)

    torch.manual_seed(0)
    model = nn.Sequential(*(layer(1000.0 if i == 5 else 0.5) for i in range(8)))
    x = torch.randn(64, 8)

    def run(seed: int) -> float:
        return float((model(x) - x).norm() / x.norm())

    found = hmp.tune(run, lambda value, _: value < 0.1, seeds=(0,))
    assert found.rules == {"mul @ 5": "fp32"}


# ---- files -----------------------------------------------------------------------------------------------------------


def test_the_written_lists_give_the_same_value_and_tell_their_reasons(tmp_path: Path) -> None:
    found = hmp.tune(_value, _is_close, seeds=(0,))
    found.write(tmp_path / "lists")
    fp32 = (tmp_path / "lists" / "fp32.txt").read_text()
    assert "# In float32: for accuracy.\nmul @ Net\n" in fp32
    hmp.convert("O1", tmp_path / "lists" / "bf16.txt", tmp_path / "lists" / "fp32.txt")
    assert _value(0) == found.values[0][1]


def test_no_run_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    first = hmp.tune(_value, _is_close, seeds=(0,), path=path)
    again = hmp.tune(_counted(_value), _is_close, seeds=(0,), path=path)
    assert again == first
    assert not CALLS
    assert json.loads(path.read_text())["format"] == "habana-mp tuning"


def test_after_an_error_the_file_has_the_runs_so_far(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"

    def failing(seed: int) -> Any:
        if len(CALLS) > 4:
            raise KeyError("power is off")
        return _value(seed)

    with pytest.raises(KeyError, match="power is off"):
        hmp.tune(_counted(failing), _is_close, seeds=(0,), path=path)
    assert not hmp.is_converted()
    assert len(json.loads(path.read_text())["runs"]) >= 2
    assert hmp.tune(_value, _is_close, seeds=(0,), path=path).rules == {"mul @ Net": "fp32", "layer_norm @ Net": "fp32"}


# ---- the budget ------------------------------------------------------------------------------------------------------


def test_at_the_end_of_the_budget_the_best_so_far_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("habana_mp.tuning.configurations.time.monotonic", lambda: clock[0])

    def run(seed: int) -> Any:
        clock[0] += 1
        return _value(seed)

    short = hmp.tune(run, _is_close, seeds=(0,), budget=1.5)
    assert not short.passed
    assert clock[0] == 2  # no run begins after the budget
    clock[0] = 0.0
    middle = hmp.tune(run, _is_close, seeds=(0,), budget=8.5)
    assert middle.passed
    assert not middle.is_minimal
    assert "maybe fewer lines are enough" in str(middle)
    assert {"mul", "layer_norm"} <= set(middle.rules)


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_a_run_that_converts_is_refused() -> None:
    def run(seed: int) -> float:
        hmp.convert()
        return 0.0

    with pytest.raises(RuntimeError, match=r"`run` must not call `hmp\.convert`"):
        hmp.tune(run, _is_close)
    assert not hmp.is_converted()


def test_a_conversion_in_force_is_refused() -> None:
    hmp.convert()
    with pytest.raises(RuntimeError, match="call it without a conversion"):
        hmp.tune(_value, _is_close)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"run": 3}, TypeError, "`run` must be a function; got int: 3"),
        ({"check": None}, TypeError, "`check` must be a function; got NoneType: None"),
        ({"seeds": ()}, ValueError, "`seeds` must hold at least one seed"),
        ({"budget": 0}, ValueError, "`budget` must be None or seconds above 0; got 0"),
        ({"preset": "nothing"}, ValueError, "`preset` must be one of"),
        ({"dtype": "fp8"}, ValueError, "got 'fp8'"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        hmp.tune(**{"run": _value, "check": _is_close, **arguments})


def test_a_file_of_another_tuning_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    hmp.tune(lambda seed: 1.0, lambda value, exact: True, seeds=(0,), path=path)
    with pytest.raises(ValueError, match="it belongs to a tuning with"):
        hmp.tune(lambda seed: 1.0, lambda value, exact: True, seeds=(0,), path=path, preset="recommended")
    path.write_text("[]")
    with pytest.raises(ValueError, match=re.escape("it is no file of `hmp.tune`")):
        hmp.tune(lambda seed: 1.0, lambda value, exact: True, seeds=(0,), path=path)
    with pytest.raises(TypeError, match="`run` must return numbers"):
        hmp.tune(lambda seed: FULL, lambda value, exact: True, seeds=(0,), path=tmp_path / "other.json")


# ---- what is faster in float32 ---------------------------------------------------------------------------------------


class _Slower:
    """Runs in which lower precision makes `linear` slower, and `mm` faster. `seconds` is the time of a whole run."""

    workers, preset, lower = 1, "hmp-default", "bf16"

    def __init__(self, seconds: Callable[[Rules], float]) -> None:
        self._seconds = seconds

    def run(self, rules: Rules, seed: int) -> tuple[Any, float]:
        return 1.0, self._seconds(rules)

    def rows(self, rules: Rules, seed: int) -> tuple[Row, ...]:
        exact = rules or ()
        of_linear = Row("linear", "fp32", 9, 0, 0, seconds=1.0)
        of_mm = Row("mm", "fp32", 9, 0, 0, seconds=2.0)
        return (
            of_linear if "linear" in exact else replace(of_linear, precision="bf16", seconds=1.5),
            of_mm if "mm" in exact else replace(of_mm, precision="bf16", seconds=1.0),
        )

    def sites(self, seed: int) -> tuple[Site, ...]:
        return ()


@pytest.mark.parametrize(("saved", "faster"), [(0.5, {"linear": "fp32"}), (0.01, {})])
def test_an_operation_that_is_faster_in_float32_stays_there_if_the_run_gains(
    saved: float, faster: dict[str, str]
) -> None:
    def seconds(rules: Rules) -> float:
        return 3.0 - saved if rules is not None and "linear" in rules else 3.0

    found = tuned_by(_Slower(seconds), lambda value, exact: True, seeds=(0,), budget=None, path=None)
    assert (found.rules, found.faster) == ({}, faster)


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_the_first_run_in_each_precision_is_not_timed(seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    clock, started = [0.0], set()
    monkeypatch.setattr("habana_mp.tuning.tune.perf_counter", lambda: clock[0])

    def run(seed: int) -> float:
        lowered = F.linear(FULL, FULL).dtype is torch.bfloat16
        clock[0] += 3 if lowered else 1
        if lowered not in started:
            started.add(lowered)
            clock[0] += 100  # imports, memory, the choice of kernels
        return 1.0

    monkeypatch.setattr("habana_mp.tuning.tune._SLOWER", math.inf)  # all results of `linear` stay lowered
    assert hmp.tune(run, lambda value, exact: True, seeds=seeds).speedup == 1 / 3


def test_times_of_operations_are_measured_in_both_precisions() -> None:
    def run(seed: int) -> float:
        return float(F.linear(FULL, FULL).sum())

    runner = _RunsHere(run, "hmp-default", "bf16")
    for rules, precision in (((), "bf16"), (("linear",), "fp32")):
        (row,) = [one for one in runner.rows(rules, 0) if one.operation == "linear"]
        assert row.precision == precision
        assert row.seconds is not None
