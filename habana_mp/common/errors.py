"""The errors and warnings of habana_mp."""

from __future__ import annotations

import inspect
import types
import warnings


class HmpWarning(UserWarning):
    """A warning of habana_mp about a problem that does not stop the program."""


class ListError(ValueError):
    """Operation lists that cannot be used. The message has one line per problem, with its file and line."""


def line_of_user() -> tuple[str, int]:
    """Returns the file and line of the user's code, at any depth of calls inside torch or habana_mp."""
    frame: types.FrameType | None = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "habana_mp"):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("<unknown>", 0)


def warn(text: str) -> None:
    """Warns at the line of the user's code."""
    warnings.warn_explicit(text, HmpWarning, *line_of_user())
