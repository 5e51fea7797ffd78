"""What habana_mp raises and warns with."""

from __future__ import annotations

import inspect
import types
import warnings


class HmpWarning(UserWarning):
    """Something a user should know that stops nothing."""


class ListError(ValueError):
    """Operation lists that cannot be used: the message names the file and the line, of each problem on a line."""


def line_of_user() -> tuple[str, int]:
    """File and line of the user's own code, however deep inside torch or habana_mp this is called."""
    frame: types.FrameType | None = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "habana_mp"):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("<unknown>", 0)


def warn(text: str) -> None:
    """Warn at the line of the user's own code."""
    warnings.warn_explicit(text, HmpWarning, *line_of_user())
