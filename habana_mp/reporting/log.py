"""Where the cast log goes: what a user may give as ``log``, and the destination of the core that it means."""

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
    """Send the cast log to ``destination``, from the next line on.

    ``None``, ``"console"`` and ``sys.stdout`` mean the console: whatever ``sys.stdout`` is when a line is written. Any
    other string and any path is a file, of JSON lines where its name ends in ``.jsonl`` or ``.json``. A file is emptied
    first unless ``append`` is true. A `logging.Logger` gets a record at level INFO for each line.

    With ``explains`` each line says why, and which line of code called.

    A file that cannot be opened raises the ``OSError`` of `open`, with what would be right, and the previous
    destination stays in force.
    """
    if explains:
        watched_calls.tell_core()  # whose code is passed over
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
    """What is wrong with the path, and what would be right."""
    if isinstance(error, FileNotFoundError):
        return "its folder does not exist; make it, or give another path"
    if isinstance(error, IsADirectoryError):
        return "it must be a file, not a directory"
    if isinstance(error, PermissionError):
        return "this process may not write there; give another path"
    return error.strerror or str(error)


def close_log() -> None:
    """Turn the cast log off. A file is complete when this returns."""
    _core.log_off()
