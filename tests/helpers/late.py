"""Modules that are imported when a test uses them: a run that collects tests does not wait for large libraries."""

from __future__ import annotations

import importlib
from typing import Any


class Late:
    """Stands for the module of this name, and imports it for the first attribute that is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for its own attributes in each object of a module
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
