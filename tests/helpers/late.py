"""Modules that are imported when a test uses them: a run that collects tests does not wait for large libraries; and
modules of single files."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class Late:
    """Stands for the module of this name, and imports it for the first attribute that is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for its own attributes in each object of a module
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def module_of(path: Path) -> ModuleType:
    """Imports a file that is in no package."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module
