"""Greenlets take turns in a thread: each has its own regions and its own place in the report, and none crashes.

Needs greenlet and gevent.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

import gevent
import greenlet
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from habana_mp import _core, hmp
from habana_mp.common.ledger import broken
from helpers.lists import Converter
from helpers.processes import run_script

X = torch.linspace(-1, 1, 32).reshape(4, 8)


def switching(work: Callable[[int], Any], count: int) -> list[Any]:
    """Run ``work`` in ``count`` greenlets, each with its number, and give the results.

    ``pause()`` lets another one run, so they end in another order than they began in."""
    main = greenlet.getcurrent()
    results: list[Any] = [None] * count
    waiting: list[Any] = []

    def body(number: int) -> None:
        results[number] = work(number)

    waiting.extend(greenlet.greenlet(body, main) for _ in range(count))
    started = dict(zip(waiting, range(count), strict=True))
    while waiting:
        one = waiting.pop(0)
        one.switch(*((started.pop(one),) if one in started else ()))
        if not one.dead:
            waiting.insert(len(waiting) // 2, one)
    return results


def pause() -> None:
    parent = greenlet.getcurrent().parent
    if parent is not None:
        parent.switch()


class Pausing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        pause()
        return x @ x.mT

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Block(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        pause()
        return x.softmax(-1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(0), Block(1)])
        self.blocks[1].register_forward_hook(lambda *_: pause())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
            pause()
        return Pausing.apply(x)  # type: ignore[no-any-return]


@hmp.op_wrap(to="bf16")
def wrapped(x: torch.Tensor) -> torch.Tensor:
    y = x @ x.mT
    pause()
    return y @ y


def test_each_greenlet_has_its_own_regions(converted: Converter) -> None:
    converted(bf16=["matmul"])

    def work(number: int) -> list[torch.dtype]:
        regions = [nullcontext, hmp.disable_casts, lambda: hmp.autocast("cpu", torch.float16)]
        with regions[number % 3]():
            pause()
            first = (X @ X.mT).dtype
            with hmp.disable_casts() if number % 2 else nullcontext():
                pause()
            pause()
            return [first, (X @ X.mT).dtype]

    wanted = [torch.bfloat16, torch.float32, torch.float16]
    assert switching(work, 60) == [[wanted[number % 3]] * 2 for number in range(60)]
    assert (X @ X.mT).dtype is torch.bfloat16


def test_a_region_of_torchs_autocast_is_obeyed_in_its_greenlet_alone(converted: Converter) -> None:
    converted(bf16=["matmul"])

    def work(number: int) -> torch.dtype:
        with torch.autocast("cpu", enabled=False) if number else nullcontext():
            pause()
            return (X @ X.mT).dtype

    assert switching(work, 3) == [torch.bfloat16, torch.float32, torch.float32]


def test_a_new_greenlet_begins_outside_of_regions_and_the_one_around_stays_in_its_own(converted: Converter) -> None:
    converted(bf16=["matmul"])
    with hmp.disable_casts():
        assert switching(lambda _: (X @ X.mT).dtype, 1) == [torch.bfloat16]
        assert (X @ X.mT).dtype is torch.float32


def test_a_module_that_runs_makes_no_other_greenlet_lower(converted: Converter) -> None:
    model = Block(0)
    converted(bf16=["matmul", "linear"], within="modules")
    seen = []

    def work(number: int) -> None:
        if number == 0:
            model(X)
        else:
            seen.append((X @ X.mT).dtype)

    switching(work, 3)
    assert seen == [torch.float32] * 2


def test_a_module_is_constructed_in_its_greenlet_alone(converted: Converter) -> None:
    converted(bf16=["matmul"])
    seen: dict[int, list[torch.dtype]] = {}

    class Slow(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            pause()
            seen[number] = [(X @ X.mT).dtype]
            pause()
            seen[number] += [(X @ X.mT).dtype]

    def work(number: int) -> None:
        if number % 2:
            Slow(number)
        else:
            seen[number] = []
            for _ in range(3):
                seen[number] += [(X @ X.mT).dtype]
                pause()

    switching(work, 6)
    assert seen == {n: [torch.float32] * 2 if n % 2 else [torch.bfloat16] * 3 for n in range(6)}


def test_an_optimizer_steps_in_its_greenlet_alone(converted: Converter) -> None:
    converted(bf16=["matmul"])
    seen: dict[int, list[torch.dtype]] = {}

    class Slow(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            seen[0] = [(X @ X.mT).dtype]
            pause()
            seen[0] += [(X @ X.mT).dtype]

    def work(number: int) -> None:
        if number == 0:
            Slow(nn.Linear(2, 2).parameters(), lr=0.1).step()
        else:
            seen[number] = [(X @ X.mT).dtype]

    switching(work, 3)
    assert seen == {0: [torch.float32] * 2, 1: [torch.bfloat16], 2: [torch.bfloat16]}


@pytest.fixture(params=[None, "modules"])
def within(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize(
    ("detail", "is_told"), [("operations", True), ("modules", True), ("lines", True), ("lines", False)]
)
def test_a_thousand_greenlets_switch_in_the_middle_of_everything(detail: Any, within: Any, is_told: bool) -> None:
    models = [Net() for _ in range(4)]

    def work(number: int) -> tuple[torch.Size, torch.Size]:
        with ExitStack() as stack:
            if number % 3 == 1:
                stack.enter_context(hmp.autocast("cpu"))
            if number % 5 == 1:
                stack.enter_context(hmp.disable_casts())
            pause()
            return models[number % 4](X).shape, wrapped(X).shape

    # Around all of them: torch has one gradient mode for a thread, and one of forward mode, which greenlets that take
    # turns would leave off.
    told = nullcontext() if is_told else broken("greenlet.switches")
    with told, forward_ad._set_fwd_grad_enabled(True), torch.no_grad():
        hmp.convert(report=detail, within=within)
        assert switching(work, 1000) == [((4, 4), (4, 4))] * 1000
        report = hmp.report(show=False)
        hmp.restore()
    if not is_told or detail == "operations":
        return
    linears: Counter[str | None] = Counter()
    for row in report:
        if row.operation == "linear":
            linears[row.module] += row.calls
    names = [f"Net{'' if n == 1 else f'#{n}'}" for n in range(1, 5)]
    assert linears == {f"{name}.blocks.{block}.linear": 250 for name in names for block in range(2)}
    assert {row.module for row in report if row.operation == "softmax"} == {
        f"{name}.blocks.{block}" for name in names for block in range(2)
    }


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("detail", ["modules", "lines"])
def test_a_greenlet_that_is_killed_in_a_forward_leaves_the_report_right(detail: Any) -> None:
    hmp.convert(report=detail)
    model = Net()

    def body() -> None:
        model(X)

    left = [greenlet.greenlet(body) for _ in range(10)]
    for one in left:
        one.switch()
    del one
    left.clear()  # each is thrown GreenletExit where it waits
    X @ X.mT
    (row,) = [row for row in hmp.report(show=False) if row.operation == "matmul"]
    assert row.module is None
    model.blocks[0].linear(X)
    assert _core.running_place() == -1


@pytest.mark.usefixtures("counted")
def test_the_time_of_other_greenlets_is_no_module_s() -> None:
    hmp.convert(report="modules")
    model = Block(0)

    def work(number: int) -> None:
        if number == 0:
            model(X)
        else:
            time.sleep(0.3)

    switching(work, 2)
    assert all(one.seconds < 0.25 for one in hmp.report(show=False).modules)


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("detail", ["operations", "modules", "lines"])
def test_gevent_runs_models_beside_each_other(detail: Any, within: Any) -> None:
    class Sleeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gevent.sleep(0)
            x = self.linear(x)
            gevent.sleep(0)
            return x

    hmp.convert(report=detail, within=within)
    models = [Sleeping() for _ in range(3)]

    def work(number: int) -> torch.dtype:
        with hmp.disable_casts() if number % 2 else nullcontext():
            gevent.sleep(0)
            return models[number % 3](X).dtype

    with torch.no_grad():
        found = [one.get() for one in [gevent.spawn(work, number) for number in range(300)] if one.join() is None]
    assert found == [torch.float32 if number % 2 else torch.bfloat16 for number in range(300)]
    report = hmp.report(show=False)
    if detail != "operations":
        assert {row.module for row in report if row.operation == "linear"} == {
            "Sleeping.linear",
            "Sleeping#2.linear",
            "Sleeping#3.linear",
        }


def test_each_thread_tells_its_greenlets_apart(converted: Converter) -> None:
    converted(bf16=["matmul"])
    found: list[Any] = []

    def work(number: int) -> torch.dtype:
        with hmp.disable_casts() if number % 2 else nullcontext():
            pause()
            return (X @ X.mT).dtype

    thread = threading.Thread(target=lambda: found.extend(switching(work, 20)))
    thread.start()
    thread.join()
    assert found == [torch.bfloat16, torch.float32] * 10


def test_another_trace_function_goes_on_and_is_there_after_restore(converted: Converter) -> None:
    seen: list[Any] = []

    def theirs(event: str, switch: Any) -> None:
        seen.append(event)

    before = greenlet.settrace(theirs)
    try:
        converted(bf16=["matmul"])
        assert greenlet.gettrace() is not theirs
        switching(lambda _: pause(), 2)
        assert seen == ["switch"] * 8
        hmp.restore()
        assert greenlet.gettrace() is theirs
    finally:
        greenlet.settrace(before)


def test_restore_in_the_middle_leaves_each_greenlet_with_its_own_state(converted: Converter) -> None:
    converted(bf16=["matmul"])

    def work(number: int) -> torch.dtype:
        with hmp.disable_casts() if number else nullcontext():
            pause()
            if number == 2:
                hmp.restore()
            pause()
        return (X @ X.mT).dtype

    dtypes = switching(work, 4)  # some end before it
    assert dtypes[2] is torch.float32
    assert (X @ X.mT).dtype is torch.float32
    greenlet.greenlet(lambda: None).switch()
    assert greenlet.gettrace() is None


@pytest.fixture(autouse=True)
def no_trace_function_is_left() -> Iterator[None]:
    yield
    hmp.restore()
    assert greenlet.gettrace() is None


def test_greenlet_may_be_imported_after_convert() -> None:
    done = run_script(
        """
import sys, torch
from habana_mp import hmp
x = torch.ones(4, 4)
assert "greenlet" not in sys.modules
hmp.convert()
with hmp.disable_casts():
    import greenlet
    one = greenlet.greenlet(lambda: (x @ x).dtype)
    print(one.switch(), (x @ x).dtype)
hmp.restore()
print(greenlet.gettrace())
"""
    )
    assert done.stdout.split("\n") == ["torch.bfloat16 torch.float32", "None", ""], done.stderr
