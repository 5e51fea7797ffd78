"""Runs a module as ``python -m`` does, and a folder or an archive as ``python`` does."""

from __future__ import annotations

import runpy
from typing import Any

#: Python itself calls this function for both. It runs a module as the `__main__` there is.
_run: Any = runpy._run_module_as_main  # type: ignore[attr-defined]


def run_module(name: str) -> None:
    """Equivalent to ``python -m name``."""
    _run(name)


def run_folder() -> None:
    """Equivalent to ``python path``, for a folder or an archive that is the first entry of ``sys.path``."""
    _run("__main__", alter_argv=False)
