"""Ctrl-C between two instructions of convert, of restore and of a second convert.

The tracer raises before the k-th instruction of this package's Python code, or the k-th line of torch's. Afterwards
torch is as it was or converted whole, and `restore` leaves no trace.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import habana_mp
from habana_mp import _core, hmp
from habana_mp.common import locks
from helpers.state_of_torch import assert_torch_is_restored

OURS = str(Path(habana_mp.__file__).parent)
TORCHS = str(Path(torch.__file__).parent)
M = torch.linspace(0.1, 0.9, 16).reshape(4, 4)
BF16, FP32 = torch.bfloat16, torch.float32


class Interrupted(KeyboardInterrupt):
    """Ours: another one is no part of the test."""


class Tracer:
    """Counts instructions, and raises before the one with this number."""

    def __init__(self, number: int | None) -> None:
        self.count = 0
        self._number = number

    def begin(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if name.startswith(OURS):
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif not name.startswith(TORCHS):
            return None
        return self.step

    def step(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if event in ("opcode", "line"):
            self.count += 1
            if self.count == self._number:
                sys.settrace(None)
                raise Interrupted
        return self.step


def interrupted_at(number: int | None, work: Callable[[], object]) -> int:
    """Run the work, and return how many places it passed before it ended or was interrupted."""
    tracer = Tracer(number)
    before = sys.gettrace()
    sys.settrace(tracer.begin)
    try:
        with contextlib.suppress(Interrupted):
            work()
    finally:
        sys.settrace(before)
        release_locks()
    return tracer.count


def release_locks() -> None:
    """Releases the locks that this thread still holds.

    CPython handles signals after calls and at the beginnings of loops and functions, so none arrives between the end of
    a ``with`` block and the call of ``__exit__``. The tracer raises there too, and the lock stays held.
    """
    for lock in (locks.imports, locks.watching, locks.installation):
        with contextlib.suppress(RuntimeError):  # no longer held
            while True:
                lock.release()


def codes() -> list[Any]:
    """The code of functions of torch that patches exchange."""
    changed = (torch.Tensor.register_hook, torch.nn.Module._call_impl, torch.nn.Module.__init__)
    more = (torch.utils.checkpoint.checkpoint, torch.nn.functional.normalize, torch.Tensor.__rdiv__)
    return [one.__code__ for one in (*changed, *more)]


def settings_in_force() -> str:
    products, powers = torch.mm(M, M).dtype, torch.exp(M.bfloat16()).dtype
    return {(BF16, BF16): "first", (FP32, BF16): "none", (BF16, FP32): "second"}.get((products, powers), "neither")


def first() -> None:
    hmp.convert(preset="torch-cpu")


def second() -> None:
    hmp.convert("O2", report="modules")


def check(allowed: set[str], before: list[Any]) -> None:
    state = settings_in_force()
    assert state in allowed
    assert hmp.is_converted() == (state != "none")
    hmp.restore()
    assert_torch_is_restored()
    assert codes() == before
    first()
    assert settings_in_force() == "first"
    hmp.restore()
    assert_torch_is_restored()
    assert codes() == before


def spread(last: int, how_many: int | None) -> list[int]:
    if how_many is None:
        return list(range(1, last + 1))
    return sorted({1 + (last - 1) * part // max(1, how_many - 1) for part in range(how_many)})


def interrupt_convert(how_many: int | None) -> None:
    hmp.restore()
    before = codes()
    last = interrupted_at(None, first)
    hmp.restore()
    for number in spread(last, how_many):
        interrupted_at(number, first)
        check({"none", "first"}, before)


def interrupt_second_convert(how_many: int | None) -> None:
    hmp.restore()
    before = codes()
    first()
    last = interrupted_at(None, second)
    hmp.restore()
    for number in spread(last, how_many):
        first()
        interrupted_at(number, second)
        check({"none", "first", "second"}, before)


def interrupt_restore(how_many: int | None) -> None:
    hmp.restore()
    before = codes()
    second()
    last = interrupted_at(None, hmp.restore)
    for number in spread(last, how_many):
        second()
        interrupted_at(number, hmp.restore)
        assert hmp.is_converted() == (_core.installed_count() != 0)
        hmp.restore()
        assert _core.installed_count() == 0
        check({"none"}, before)


INTERRUPTED = [interrupt_convert, interrupt_second_convert, interrupt_restore]


@pytest.mark.parametrize("interrupt", INTERRUPTED)
def test_an_interrupt_leaves_torch_as_it_was_or_converted_whole(interrupt: Callable[[int | None], None]) -> None:
    first()
    second()  # what is done once in a process is done
    hmp.restore()
    interrupt(9)
