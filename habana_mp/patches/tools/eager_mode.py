"""Runs compiled functions as they are written, so that each of their operations can be seen."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch


class EagerMode:
    """Switches compiled code off in the process."""

    def __init__(self) -> None:
        self._stance: Any = None

    def begin(self) -> None:
        if self._stance is None and "torch._dynamo" in sys.modules:
            with contextlib.suppress(RuntimeError):  # not inside of compiled code; the next step is seen
                self._stance = torch.compiler.set_stance("force_eager")

    def end(self) -> None:
        if self._stance is not None:
            with contextlib.suppress(RuntimeError):
                self._stance.__exit__(None, None, None)
            self._stance = None
