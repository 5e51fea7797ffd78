"""The folder of this package, and those of installed packages and of Python."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

PACKAGE = Path(__file__).parents[1]

_PATHS = sysconfig.get_paths()
#: The folders of Python's own modules.
OF_PYTHON = tuple({_PATHS[name] + os.sep for name in ("stdlib", "platstdlib")})
_FOLDERS_OF_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_installed(path: str) -> bool:
    """True for a file of an installed package."""
    return any(folder in path for folder in _FOLDERS_OF_PACKAGES)
