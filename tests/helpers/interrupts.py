"""Ctrl-C between two instructions: the tracer raises before the k-th instruction of this package's Python code, at the
beginning of a function of it, or before the k-th line of torch's."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import habana_mp
from habana_mp import _core
from habana_mp.common import locks

OURS = str(Path(habana_mp.__file__).parent)
TORCHS = str(Path(torch.__file__).parent)


class Interrupted(KeyboardInterrupt):
    """Ours: another one is no part of the test."""


class Tracer:
    """Counts instructions, and raises before the one with this number. With ``pure``, names of folders of this package
    whose functions change nothing, it leaves these out and counts each other instruction once."""

    def __init__(self, number: int | None, pure: tuple[str, ...] = ()) -> None:
        self.count = 0
        self._number = number
        self._pure = tuple(f"{OURS}/{one}/" for one in pure)
        self._passed: set[tuple[types.CodeType, int]] = set()

    def begin(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if name.startswith(OURS):
            if name.startswith(self._pure):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._passes(frame)
        elif not name.startswith(TORCHS):
            return None
        return self.step

    def step(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if event in ("opcode", "line"):
            self._passes(frame)
        return self.step

    def _passes(self, frame: types.FrameType) -> None:
        place = frame.f_code, frame.f_lasti
        if self._pure and place in self._passed:
            return
        self._passed.add(place)
        self.count += 1
        if self.count == self._number:
            sys.settrace(None)
            raise Interrupted


def interrupted_at(number: int | None, work: Callable[[], object], pure: tuple[str, ...] = ()) -> int:
    """Run the work, and return how many places it passed before it ended or was interrupted."""
    tracer = Tracer(number, pure)
    before = sys.gettrace()
    gradients, state = torch.is_grad_enabled(), _core.current_state()
    sys.settrace(tracer.begin)
    try:
        with contextlib.suppress(Interrupted):
            work()
    finally:
        sys.settrace(before)
        release_locks()
        torch.set_grad_enabled(gradients)
        _core.exchange_state(state)
    return tracer.count


def release_locks() -> None:
    """Releases the locks that this thread still holds. The other state of a ``with`` block is restored too.

    CPython handles signals after calls and at the beginnings of loops and functions, so none arrives between the end of
    a ``with`` block and the call of ``__exit__``. The tracer raises there too, and the lock stays held.
    """
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    for lock in (locks.imports, locks.installation, *([] if compiler is None else [compiler.compile_lock])):
        with contextlib.suppress(RuntimeError):  # no longer held
            while True:
                lock.release()
