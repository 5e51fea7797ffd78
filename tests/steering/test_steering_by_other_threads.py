"""One thread converts or keeps a module while another one runs the module for the first time: the next call obeys."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from habana_mp import hmp
from habana_mp.patches.torch import module_paths
from habana_mp.patches.torch.module_holders import all_modules
from helpers.models import Calls
from helpers.processes import in_threads

BF16, FP32 = torch.bfloat16, torch.float32


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]  # torch does not type it


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


def test_a_module_that_is_kept_while_it_runs_is_kept_in_its_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    run_while_it_is_asked(monkeypatch, "module_name", "bf16", model, lambda: hmp.keep(model))
    assert model(torch.ones(2, 8)).dtype is FP32


def run_other_kept_modules() -> None:
    others = [hmp.keep(Model(), precision) for precision in ("bf16", "fp16")]
    assert [other(torch.ones(2, 8)).dtype for other in others] == [BF16, torch.float16]


class Waiting(nn.Module):
    """Computes, waits until other code has run, and computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.half = threading.Event()
        self.may_go_on = threading.Event()

    def forward(self, x: torch.Tensor) -> list[torch.dtype]:
        first = torch.mm(x, x).dtype
        self.half.set()
        assert self.may_go_on.wait(30)
        return [first, torch.mm(x, x).dtype]


def test_a_forward_that_runs_keeps_its_rules_while_others_keep_modules_and_run_them() -> None:
    x, found = torch.ones(4, 4), []
    hmp.convert(rules={"mm @ waiting": "fp32"})
    model = nn.Sequential(OrderedDict(waiting=(waiting := Waiting())))
    thread = threading.Thread(target=lambda: found.append(model(x)))
    thread.start()
    assert waiting.half.wait(30)
    run_other_kept_modules()
    waiting.may_go_on.set()
    thread.join()
    assert found == [[FP32, FP32]]


def test_a_checkpointed_block_is_computed_again_under_the_rules_of_its_forward() -> None:
    x, seen = torch.ones(4, 4, requires_grad=True), []

    def block(given: torch.Tensor) -> torch.Tensor:
        product = torch.mm(given, given)
        seen.append(product.dtype)
        return product.exp().sum()

    hmp.convert(rules={"mm @ part": "fp32"})
    part = Calls(lambda given: torch.utils.checkpoint.checkpoint(block, given, use_reentrant=False))
    model = nn.Sequential(OrderedDict(part=part))
    loss = model(x)
    run_other_kept_modules()
    loss.backward()
    assert seen == [FP32, FP32]


def test_a_search_for_modules_lets_other_threads_make_tuples() -> None:
    failures: list[BaseException] = []
    stop = threading.Event()

    def make_tuples() -> None:
        try:
            while not stop.is_set():
                tuple(one for one in range(500))
        except BaseException as error:  # SystemError: another owner of the half made tuple
            failures.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=make_tuples) for _ in range(2)]
    for thread in threads:
        thread.start()
    models = [nn.ReLU() for _ in range(3000)]
    for _ in range(5):
        assert len({id(one) for one in all_modules()}) >= len(models)
    stop.set()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)
    assert failures == []


def test_a_thread_that_a_forward_starts_runs_by_the_rules_of_the_modules_that_it_calls() -> None:
    x, found = torch.ones(4, 4), []

    def starts(x: torch.Tensor) -> None:
        work = [lambda: torch.mm(x, x), lambda: inner(torch.ones(2, 8))]
        in_threads(lambda _: found.extend(one().dtype for one in work), 1)

    inner = Model()
    hmp.convert(rules={"mm @ starts": "fp32", "linear @ starts.inner.layer": "fp32"})
    model = nn.Sequential(OrderedDict(starts=Calls(starts, inner=inner)))
    model(x)
    assert found == [BF16, FP32]
