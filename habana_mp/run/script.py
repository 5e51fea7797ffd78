"""Runs a script, or a module, as ``python`` itself would run it."""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import pkgutil
import re
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from typing import Any

from habana_mp import _core
from habana_mp.patches.tools import main_module
from habana_mp.reporting.ranks import Ranks

#: The previous ``__main__``: its code continues to run, below the script.
_before: list[types.ModuleType] = []

_is_first_rank = Ranks().rank == 0


def say(text: str) -> None:
    """Prints a line of habana_mp, even if the script redirects its own output. With several ranks, only the first one
    prints."""
    if _is_first_rank and sys.__stderr__ is not None and not sys.__stderr__.closed:
        with contextlib.suppress(OSError, ValueError):  # a full disk, or a closed pipe: the script runs on
            print(f"habana-mp: {_core.printable(text)}", file=sys.__stderr__, flush=True)


@dataclass(frozen=True)
class Script:
    """The words after ``python`` on its command line: a file (or a folder, or an archive) and its arguments. If
    ``is_module`` is true: the words after ``-m``."""

    words: tuple[str, ...]
    is_module: bool = False

    @classmethod
    def of(cls, words: Sequence[str]) -> Script:
        """Returns the script of a command line. It has no words if its name is missing."""
        if not words or not words[0].startswith("-m"):
            return cls(tuple(words))
        return cls((*filter(None, [words[0][2:]]), *words[1:]), is_module=True)

    @property
    def name(self) -> str:
        return self.words[0]

    def check(self) -> None:
        """Raises OSError if the file does not exist. A missing module is found by its import."""
        if not self.is_module and not self._is_folder():
            with open(self.name, "rb"):
                pass

    def may_read(self, option: str) -> bool:
        """True if the script's text has the name of an option, other than as an attribute. The text of a module, a
        folder or an archive is not looked for."""
        if self.is_module or self._is_folder():
            return True
        name = option.partition("=")[0].lstrip("-").replace("-", "[-_]")
        return re.search(rf"(?<![\w.]){name}\b", Path(self.name).read_text("utf-8", "replace")) is not None

    def run(self) -> None:
        """Runs the script to its end, or raises what it raises. The traceback is as if it had been started by
        itself."""
        try:
            self._run()
        except BaseException as error:
            _show_without_ours(error)
            raise

    def _run(self) -> None:
        _new_main()
        sys.argv = ["-m" if self.is_module else self.name, *self.words[1:]]
        if self.is_module:
            _begin_path_with(os.getcwd())
            main_module.run_module(self.name)
        elif self._is_folder():
            _begin_path_with(_from_here(self.name), always=True)
            main_module.run_folder()
        else:
            _begin_path_with(os.path.dirname(os.path.realpath(self.name)))
            self._run_file()

    def _is_folder(self) -> bool:
        if not os.path.exists(self.name):
            return False
        if os.path.isdir(self.name) and not os.path.isfile(os.path.join(self.name, "__main__.py")):
            raise IsADirectoryError(errno.EISDIR, "a folder without a `__main__.py` is no script", self.name)
        return pkgutil.get_importer(_from_here(self.name)) is not None

    def _run_file(self) -> None:
        path = _from_here(self.name)
        with open(path, "rb") as file:
            code = pkgutil.read_code(file)  # None if the file is not bytecode
        compiled = code is not None
        if not compiled:
            code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
        main = vars(sys.modules["__main__"])
        main["__file__"], main["__cached__"] = path, None
        main["__loader__"] = (SourcelessFileLoader if compiled else SourceFileLoader)("__main__", path)
        exec(code, main)


def _from_here(path: str) -> str:
    """Returns the path as Python forms it: ``..`` and links stay in it."""
    return os.path.join(os.getcwd(), path)


def _new_main() -> None:
    main: Any = types.ModuleType("__main__")
    main.__builtins__ = builtins
    before = sys.modules["__main__"]
    if "__annotations__" in vars(before):
        main.__annotations__ = {}
    _before.append(before)
    sys.modules["__main__"] = main


def _begin_path_with(folder: str, *, always: bool = False) -> None:
    """Makes this folder the first on the path, in place of the folder of the started program, which Python puts there
    unless an option forbids it."""
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path[0] = folder
    elif always:
        sys.path.insert(0, folder)


def _show_without_ours(error: BaseException) -> None:
    """Makes Python show the traceback as if the script had been started by itself."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "habana_mp":
        trace = trace.tb_next
    hook = getattr(sys, "excepthook", sys.__excepthook__)

    def show(kind: type[BaseException], value: BaseException, whole: types.TracebackType | None) -> None:
        if value is error:
            error.__traceback__ = whole = trace
        hook(kind, value, whole)

    sys.excepthook = show
