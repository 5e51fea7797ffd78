"""Raises an error at a chosen place, as a signal handler may do."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def interrupted(
    is_place: Callable[[types.FrameType, str], bool], nth: int = 1, error: type[BaseException] = KeyboardInterrupt
) -> Iterator[None]:
    """Raises the error at the nth event for which ``is_place(frame, event)`` is true (``call``, ``c_return``, ...)."""
    left = nth

    def interrupt(frame: types.FrameType, event: str, _: Any) -> None:
        nonlocal left
        if is_place(frame, event):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise error

    sys.setprofile(interrupt)
    try:
        yield
    finally:
        sys.setprofile(None)
