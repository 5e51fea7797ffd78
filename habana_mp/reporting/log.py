"""The destination of the cast log: from the argument ``log`` to the core."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import PurePath
from typing import Literal, TextIO, TypeAlias

from habana_mp import _core
from habana_mp.patches.torch import watched_calls

LogDestination: TypeAlias = "str | os.PathLike[str] | logging.Logger | TextIO | None"

_JSON_SUFFIXES = (".jsonl", ".json")


def open_log(destination: LogDestination = None, *, append: bool = False, explains: bool = False) -> None:
    """Sends the cast log to ``destination``, from the next line on.

    ``None``, ``"console"`` and ``sys.stdout`` mean the console: the ``sys.stdout`` of the time when a line is written.
    Any other string and any path is a file. It holds JSON lines if its name ends in ``.jsonl`` or ``.json``, and is
    emptied first unless ``append`` is true. A `logging.Logger` gets a record at level INFO for each line.

    With ``explains`` each line gives the reason, and the line of code that called.

    A file that cannot be opened raises the ``OSError`` of `open` with advice in its message, and the previous
    destination stays in force.
    """
    if explains:
        watched_calls.configure_core()  # which files are not the caller's
    if destination is None or destination is sys.stdout or destination == "console":
        _core.log_to("console", explains=explains)
    elif isinstance(destination, logging.Logger):
        _core.log_to("python", destination, explains=explains)
    elif isinstance(destination, (str, os.PathLike)):
        path = os.fspath(destination)
        kind: Literal["json", "file"] = "json" if PurePath(path).suffix.lower() in _JSON_SUFFIXES else "file"
        try:
            _core.log_to(kind, path, append=append, explains=explains)
        except OSError as error:
            raise type(error)(error.errno, f"the log cannot be written: {_why(error)}", path) from None
    else:
        raise TypeError(
            '`log` must be None, "console", sys.stdout, a path, or a logging.Logger; '
            f"got {type(destination).__name__}: {destination!r}"
        )


def _why(error: OSError) -> str:
    """Returns what is wrong with the path, and what to do about it."""
    if isinstance(error, FileNotFoundError):
        return "its folder does not exist; make it, or give another path"
    if isinstance(error, IsADirectoryError):
        return "it must be a file, not a directory"
    if isinstance(error, PermissionError):
        return "this process may not write there; give another path"
    return error.strerror or str(error)


def close_log() -> None:
    """Turns the cast log off. A file is complete when this returns."""
    _core.log_back_to(None)
