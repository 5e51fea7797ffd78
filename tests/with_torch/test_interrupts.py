"""Ctrl-C and the end of a program reach the script, whatever code of its the core was in."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("interruptible")

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


def compute_a_little() -> None:
    """An operation, and code after it that Python can interrupt."""
    X.softmax(-1)
    for _ in range(1000):
        len("")


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


@pytest.mark.parametrize("raised", [KeyboardInterrupt, TimeoutError])
def test_an_interrupt_while_a_call_is_decided_is_raised_by_the_call(raised: type[BaseException]) -> None:
    """`einsum` asks a function of Python whether it makes a product."""

    def interrupt() -> None:
        raise raised

    hmp.convert(preset="recommended", within="everywhere")
    a = torch.ones(4, 4)
    with called_at_the_beginning_of("_einsum_makes_product", interrupt), pytest.raises(raised):
        torch.einsum("ij,jk->ik", a, a)
    assert torch.einsum("ij,jk->ik", a, a).dtype is torch.bfloat16


class Handler(logging.Handler):
    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self.happens = happens

    def emit(self, record: logging.LogRecord) -> None:
        self.happens()


@pytest.mark.parametrize(("interrupt", "error"), [(ctrl_c, KeyboardInterrupt), (exits, SystemExit)])
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
