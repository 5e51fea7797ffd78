"""Runs a module as ``python -m`` does, and a folder or an archive as ``python`` does."""

from __future__ import annotations

import inspect
import runpy
from typing import Any

from habana_mp.common.ledger import Assumption, require

_PYTHON_ITSELF = Assumption(
    "cpython.run-module-as-main",
    assumed="`runpy._run_module_as_main` is what Python calls for `-m`, and runs a module as the `__main__` there is",
    check="it is a function that takes the module's name, and whether `sys.argv` is to get its file",
    otherwise="`habana-mp run` refuses modules, folders and archives",
)


def _run(name: str, *, alter_argv: bool = True) -> None:
    run: Any = vars(runpy).get("_run_module_as_main")
    require(_PYTHON_ITSELF, lambda: list(inspect.signature(run).parameters) == ["mod_name", "alter_argv"])
    run(name, alter_argv)


def run_module(name: str) -> None:
    """Equivalent to ``python -m name``."""
    _run(name)


def run_folder() -> None:
    """Equivalent to ``python path``, for a folder or an archive that is the first entry of ``sys.path``."""
    _run("__main__", alter_argv=False)
