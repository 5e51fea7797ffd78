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
from helpers.probes import BF16, FP32, M
from helpers.state_of_torch import assert_torch_is_restored

OURS = str(Path(habana_mp.__file__).parent)
TORCHS = str(Path(torch.__file__).parent)


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
    for lock in (locks.imports, locks.installation):
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


def interrupt(prepare: Callable[[], None], work: Callable[[], None], allowed: set[str]) -> None:
    """Interrupts the work at nine places, from the first to the last."""
    hmp.restore()
    before = codes()
    prepare()
    last = interrupted_at(None, work)
    hmp.restore()
    for part in range(9):
        prepare()
        interrupted_at(1 + (last - 1) * part // 8, work)
        assert hmp.is_converted() == (_core.installed_count() != 0)
        if work is hmp.restore:
            hmp.restore()
            assert _core.installed_count() == 0
        check(allowed, before)


INTERRUPTED = {
    "convert": (hmp.restore, first, {"none", "first"}),
    "second convert": (first, second, {"none", "first", "second"}),
    "restore": (second, hmp.restore, {"none"}),
}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupt_leaves_torch_as_it_was_or_converted_whole(name: str) -> None:
    first()
    second()  # what is done once in a process is done
    interrupt(*INTERRUPTED[name])
