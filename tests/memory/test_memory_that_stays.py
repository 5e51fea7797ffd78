"""What a program makes and drops (functions, models, threads, configurations) leaves nothing that grows with it."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import _core, hmp
from helpers.processes import in_threads

X = torch.ones(2, 2)

pytestmark = pytest.mark.usefixtures("counted")


def generated(number: int, file: str = "generated.py") -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of its own code, as programs generate them."""
    scope: dict[str, Any] = {}
    exec(compile(f"def f(x):\n    return (x @ x) + {number}\n", file, "exec"), scope)
    return scope["f"]  # type: ignore[no-any-return]  # made by exec


def grown(rounds: Callable[[int], object], count: int, first: int) -> int:
    """How many objects that Python's collector knows, or blocks of its memory, ``count`` rounds leave behind."""
    for number in range(first):
        rounds(number)
    gc.collect()
    before = sys.getallocatedblocks()
    for number in range(first, first + count):
        rounds(number)
    gc.collect()
    return sys.getallocatedblocks() - before


def test_code_of_generated_functions_is_let_go_and_their_rows_stay() -> None:
    hmp.convert(report="lines")
    codes = []
    for number in range(3000):
        function = generated(number)
        function(X)
        codes.append(weakref.ref(function.__code__))
    del function
    gc.collect()
    assert not any(code() is not None for code in codes)
    sizes = _core.watch_sizes()
    assert sizes["codes"] < 600
    assert (sizes["places"], sizes["records"]) <= (40, 60)
    (row,) = [row for row in hmp.report(show=False) if row.operation == "matmul"]
    assert (row.file, row.line, row.function, row.calls) == ("generated.py", 2, "f", 3000)


def test_a_report_that_begins_again_lets_go_of_places_and_modules() -> None:
    hmp.convert(report="lines")
    for number in range(1000):
        model = type(f"Net{number}", (nn.Linear,), {})(2, 2)
        model(X)
        generated(0, f"file{number}.py")(X)
    del model
    gc.collect()
    report = hmp.report(show=False)
    assert {row.file for row in report if row.operation == "matmul"} == {f"file{n}.py" for n in range(1000)}
    assert {f"Net{n}" for n in range(1000)} <= {row.module for row in report}
    hmp.reset_report()
    assert {**_core.watch_sizes(), "codes": 0} == {"codes": 0, "places": 0, "modules": 0, "records": 0}
    generated(0)(X)
    (row,) = hmp.report(show=False).rows[:1]
    assert (row.file, row.line) == ("generated.py", row.line)


@pytest.mark.parametrize("detail", ["modules", "lines"])
def test_dropped_models_leave_nothing_and_give_their_names_back(detail: Any) -> None:
    hmp.convert(report=detail)

    def work(_: int) -> None:
        nn.Sequential(nn.Linear(2, 2), nn.ReLU())(X)

    assert grown(work, 1500, 500) < 750
    assert _core.watch_sizes()["modules"] < 1000
    modules = {row.module for row in hmp.report(show=False)}
    assert "Sequential.0" in modules
    assert not any(module is not None and "#" in module for module in modules)


def test_threads_that_ran_a_module_leave_nothing() -> None:
    hmp.convert(report="lines")
    model = nn.Linear(2, 2)

    assert grown(lambda _: in_threads(lambda _: model(X), 1), 500, 50) < 200


def test_dropped_functions_of_op_wrap_leave_their_counts_alone() -> None:
    hmp.convert(report="lines")

    def work(number: int) -> None:
        hmp.op_wrap(generated(number), to="bf16")(X)

    assert grown(work, 1000, 500) < 300
    (row,) = [row for row in hmp.report(show=False) if row.operation == "f"]
    assert row.calls == 1500
    hmp.reset_report()
    assert _core.counts() == []


def test_configurations_leave_nothing_that_grows_with_them() -> None:
    def work(number: int) -> None:
        hmp.convert("O1" if number % 2 else "O2", within="modules" if number % 3 else None, report="lines")
        nn.Linear(2, 2)(X)
        with hmp.autocast("cpu"):
            X @ X
        hmp.report(show=False)
        hmp.restore()

    assert grown(work, 30, 15) < 300
