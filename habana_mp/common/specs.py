"""Finds modules without importing them."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Sequence
from typing import Any


def spec_in(name: str, path: Sequence[str] | None, without: Any = None) -> importlib.machinery.ModuleSpec | None:
    """Returns a module's spec in its package's ``path`` (None: in no package), or None. ``without`` is not asked."""
    for finder in sys.meta_path:
        find: Any = None if finder is without else getattr(finder, "find_spec", None)
        if find is not None and (spec := find(name, path, None)) is not None:
            return spec  # type: ignore[no-any-return]  # a spec
    return None


def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Returns the spec of a module, or None. Imports no package that the module is in, as importlib's function does."""
    path: Sequence[str] | None = None
    spec: importlib.machinery.ModuleSpec | None = None
    parts = name.split(".")
    for i in range(len(parts)):
        whole = ".".join(parts[: i + 1])
        module = sys.modules.get(whole)
        spec = getattr(module, "__spec__", None) or spec_in(whole, path)
        if spec is None:
            return None
        path = getattr(module, "__path__", None) or spec.submodule_search_locations
        if path is None and whole != name:
            return None
    return spec
