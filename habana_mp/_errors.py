"""What habana_mp raises and warns with."""

from __future__ import annotations

import sys
import types
import warnings


class HmpWarning(UserWarning):
    """Something a user should know that stops nothing."""


class ListError(ValueError):
    """An operation list that cannot be used: the message names the file and the line."""


def warn(text: str) -> None:
    """Warn at the line of the user's own code, however deep inside torch or habana_mp the cause was found."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "habana_mp"):
        frame = frame.f_back
    filename, line = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("<unknown>", 0)
    warnings.warn_explicit(text, HmpWarning, filename, line)
