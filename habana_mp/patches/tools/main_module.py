"""Runs a module as ``python -m`` does, and a folder or an archive as ``python`` does."""

from __future__ import annotations

import inspect
import runpy
from typing import Any

from habana_mp.common.ledger import Assumption, holds

_python_itself = Assumption(
    "cpython.run-module-as-main",
    assumed="`runpy._run_module_as_main` is what Python calls for `-m`, and runs a module as the `__main__` there is",
    check="it is a function that takes the module's name, and whether `sys.argv` is to get its file",
    otherwise="`habana-mp run -m` runs modules by `runpy.run_module`, folders by `runpy.run_path`",
)

_NAME = "_run_module_as_main"


def _is_there() -> bool:
    return list(inspect.signature(getattr(runpy, _NAME)).parameters) == ["mod_name", "alter_argv"]


def run_module(name: str) -> None:
    """Equivalent to ``python -m name``."""
    if holds(_python_itself, _is_there):
        _call(name, True)
    else:
        runpy.run_module(name, run_name="__main__", alter_sys=True)


def run_folder(path: str) -> None:
    """Equivalent to ``python path``, for a folder or an archive that is the first entry of ``sys.path``."""
    if holds(_python_itself, _is_there):
        _call("__main__", False)
    else:
        runpy.run_path(path, run_name="__main__")


def _call(name: str, alter_argv: bool) -> None:
    function: Any = getattr(runpy, _NAME)
    function(name, alter_argv)
