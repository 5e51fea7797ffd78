"""Ctrl-C and the end of a program reach the script, whatever code of its the core was in."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import _core, hmp
from helpers.each import each
from helpers.processes import run_script

X = torch.linspace(-1, 1, 32).reshape(4, 8)


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def exits() -> None:
    raise SystemExit(3)


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """The exceptions that Python told of and did not raise."""
    seen: list[BaseException] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: seen.append(report.exc_value))
    return seen


@pytest.fixture(autouse=True)
def ctrl_c_raises() -> Iterator[None]:
    """A shell starts what runs in its background with this signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class OutOfTimeError(Exception):
    """As the handler of an alarm raises it."""


def is_out_of_time() -> None:
    raise OutOfTimeError


INTERRUPTS: list[tuple[Callable[[], None], type[BaseException]]] = [
    (ctrl_c, KeyboardInterrupt),
    (exits, SystemExit),
    (is_out_of_time, OutOfTimeError),
]
NAMES = ["ctrl-c", "exit", "alarm"]
interrupts = pytest.mark.parametrize(("interrupt", "error"), INTERRUPTS, ids=NAMES)


class Parts(dict[str, Any]):
    """Something happens each time the names of the parts are read."""

    happens: Callable[[], None] = staticmethod(lambda: None)

    def items(self) -> Any:
        self.happens()
        return super().items()


class Outer(nn.Module):
    """The report reads the names of its modules; each time something happens."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.parts = Parts(self._modules)
        self.parts.happens = happens  # type: ignore[method-assign]  # of this object alone
        vars(self)["_modules"] = self.parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


def compute_a_little() -> None:
    """An operation, and code after it that Python can interrupt."""
    X.softmax(-1)
    for _ in range(1000):
        len("")


@pytest.mark.usefixtures("counted")
@interrupts
@each("detail", ["modules", "lines"])
def test_an_interrupt_while_a_module_tells_its_names_is_raised_by_the_call_of_the_module(
    detail: Any, interrupt: Callable[[], None], error: type[BaseException]
) -> None:
    gc.collect()  # models that tracebacks hold keep their names
    hmp.convert(report=detail)
    model = Outer(interrupt)
    with pytest.raises(error) as raised:
        model(X)
    assert not isinstance(raised.value, SystemExit) or raised.value.code == 3
    assert _core.running_place() == -1
    model.parts.happens = lambda: None  # type: ignore[method-assign]  # of this object alone
    model(X)
    assert {row.module for row in hmp.report(show=False) if row.operation == "linear"} == {"Outer.inner"}


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit(3)"])
def test_an_interrupt_while_a_tensor_tells_its_dtype_is_raised_after_the_operation(error: str) -> None:
    done = run_script(
        f"""
import torch
from habana_mp import hmp
class Odd(torch.Tensor):
    happens = False
    @property
    def dtype(self):
        if Odd.happens:
            raise {error}
        return torch.float32
odd = torch.ones(4, 4).as_subclass(Odd)
hmp.convert()
Odd.happens = True
try:
    torch.softmax(odd, -1)
    for _ in range(1000):
        len("")
except BaseException as raised:
    print(repr(raised))
""",
        HABANA_MP_READER="attribute",
    )
    assert (done.stdout.strip(), done.stderr) == (error if "(" in error else f"{error}()", "")


@contextmanager
def called_at_the_beginning_of(name: str, act: Callable[[], None]) -> Iterator[None]:
    """Calls `act` once, as soon as a Python function of this name begins."""

    def look(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == name:
            sys.setprofile(None)
            act()

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, OutOfTimeError, TimeoutError])
def test_an_interrupt_while_a_call_is_decided_is_raised_by_the_call(raised: type[BaseException]) -> None:
    """`einsum` asks a function of Python whether it makes a product."""

    def interrupt() -> None:
        raise raised

    hmp.convert(preset="recommended")
    a = torch.ones(4, 4)
    with called_at_the_beginning_of("_einsum_makes_product", interrupt), pytest.raises(raised):
        torch.einsum("ij,jk->ik", a, a)
    assert torch.einsum("ij,jk->ik", a, a).dtype is torch.bfloat16


@interrupts
def test_an_interrupt_while_a_weights_owners_are_counted_is_raised_by_the_call(
    interrupt: Callable[[], None], error: type[BaseException]
) -> None:
    hmp.convert(preset="recommended")
    w = nn.Parameter(torch.randn(192, 192))
    kept = w * 1  # the node that accumulates the gradient is an owner
    torch.nn.functional.linear(torch.ones(1, 192), w)
    assert w.detach().numpy() is not None
    with called_at_the_beginning_of("get_gradient_edge", interrupt), pytest.raises(error):
        torch.nn.functional.linear(torch.ones(1, 192), w)
    assert kept.shape == w.shape


class Handler(logging.Handler):
    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self.happens = happens

    def emit(self, record: logging.LogRecord) -> None:
        self.happens()


# An alarm's error in a handler of the log is printed, like any other error there.
@pytest.mark.parametrize(("interrupt", "error"), INTERRUPTS[:2], ids=NAMES[:2])
def test_an_interrupt_in_a_handler_of_the_log_is_raised_after_the_operation(
    interrupt: Callable[[], None], error: type[BaseException], unraisable: list[BaseException]
) -> None:
    logger = logging.Logger("interrupted", logging.INFO)
    logger.addHandler(Handler(interrupt))
    hmp.convert(log=logger)
    with pytest.raises(error) as raised:
        compute_a_little()
    hmp.restore()
    assert not isinstance(raised.value, SystemExit) or raised.value.code == 3
    assert unraisable == []
