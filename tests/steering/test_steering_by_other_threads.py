"""One thread converts or keeps a module while another one runs the module for the first time: the next call obeys."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import hmp
from habana_mp.patches.torch import module_paths

BF16, FP32 = torch.bfloat16, torch.float32


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def run_while_it_is_asked(
    monkeypatch: pytest.MonkeyPatch, function: str, rule: str, model: nn.Module, act: Callable[[], None]
) -> None:
    """Runs the model in another thread, under `linear @ layer` with this rule. When that thread has called this
    function of `module_paths`, it waits until `act` has run here."""
    asked, may_go_on = threading.Event(), threading.Event()
    original = getattr(module_paths, function)

    def waiting(*args: Any) -> Any:
        answer = original(*args)
        if threading.current_thread() is thread:
            asked.set()
            may_go_on.wait(30)
        return answer

    thread = threading.Thread(target=model, args=(torch.ones(2, 8),))
    with monkeypatch.context() as patch:
        patch.setattr(module_paths, function, waiting)
        hmp.convert(rules={"linear @ layer": rule})
        thread.start()
        assert asked.wait(30)
        act()
        may_go_on.set()
        thread.join()


def test_rules_of_a_convert_hold_in_a_module_that_ran_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    run_while_it_is_asked(
        monkeypatch, "class_names", "fp32", model, lambda: hmp.convert(rules={"linear @ layer": "bf16"})
    )
    assert model(torch.ones(2, 8)).dtype is BF16


def test_a_convert_without_rules_holds_in_a_module_that_ran_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    run_while_it_is_asked(monkeypatch, "class_names", "fp32", model, hmp.convert)
    assert model(torch.ones(2, 8)).dtype is BF16


def test_a_module_that_is_kept_while_it_runs_is_kept_in_its_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    run_while_it_is_asked(monkeypatch, "module_name", "bf16", model, lambda: hmp.keep(model))
    assert model(torch.ones(2, 8)).dtype is FP32
