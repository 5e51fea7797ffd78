"""What is known of libraries: one file for each, which is found by itself.

A file defines some of these:

- ``EXCHANGES``: functions of the library, and what they are replaced by (``tools/named_functions.py``)
- ``EXACT_PACKAGES``: names of packages whose own arithmetic is not lowered (``tools/exact_package.py``)
- ``PATCHES``: classes of other patches
- ``WRAPPERS``: classes of modules that wrap another one, by their full name, and their attribute for it
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from habana_mp.patches.tools.exact_package import ExactPackage
from habana_mp.patches.tools.named_functions import Exchange
from habana_mp.patches.tools.patch import Patch
from habana_mp.patches.torch import module_paths


def _files() -> list[ModuleType]:
    return [importlib.import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__)]


def exchanges() -> tuple[Exchange, ...]:
    """Returns the functions of all libraries that are replaced."""
    return tuple(one for file in _files() for one in getattr(file, "EXCHANGES", ()))


def library_patches() -> Iterator[Patch]:
    """Yields the patches of all libraries."""
    for exchange in exchanges():
        yield from exchange.patches()
    for file in _files():
        module_paths.wrappers.update(getattr(file, "WRAPPERS", {}))
        yield from map(ExactPackage, getattr(file, "EXACT_PACKAGES", ()))
        yield from (patch() for patch in getattr(file, "PATCHES", ()))
