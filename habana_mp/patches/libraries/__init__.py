"""What is done for libraries: one file for each, all of which are found.

A file defines some of these:

- ``EXACT_FUNCTIONS``: a table (``tools/named_functions.py``) of functions that run with their tensors in float32, and
  without casts
- ``WITHOUT_CASTS``: a table of functions that run without casts
- ``EXCHANGES``: other functions of the library, and what they are replaced by
- ``EXACT_PACKAGES``: names of packages whose own arithmetic is not lowered (``tools/exact_code.py``)
- ``PATCHES``: classes of other patches
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from habana_mp.patches.tools.casts_off import without_casts
from habana_mp.patches.tools.exact_code import ExactPackages
from habana_mp.patches.tools.in_float32 import exactly
from habana_mp.patches.tools.named_functions import Exchange, assumption_of_library
from habana_mp.patches.tools.patch import Patch
from habana_mp.patches.torch.exact_code_in_graphs import exact_code_in_graphs


def _files() -> list[ModuleType]:
    return [importlib.import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__)]


#: What replaces the functions of a table, by its name.
_TABLES = {"EXACT_FUNCTIONS": exactly, "WITHOUT_CASTS": without_casts}


@cache
def _exchanges_of(file: ModuleType) -> tuple[Exchange, ...]:
    others: tuple[Exchange, ...] = getattr(file, "EXCHANGES", ())
    tables = [(call, getattr(file, name)) for name, call in _TABLES.items() if hasattr(file, name)]
    if not tables:
        return others
    assumption = assumption_of_library(file.__name__.rpartition(".")[2], "are replaced")
    return *others, *(Exchange(call, table, assumption) for call, table in tables)


def exchanges() -> tuple[Exchange, ...]:
    """Returns the functions of all libraries that are replaced."""
    return tuple(one for file in _files() for one in _exchanges_of(file))


def exact_packages() -> tuple[str, ...]:
    """Returns the packages whose own arithmetic is not lowered."""
    return tuple(sorted(name for file in _files() for name in getattr(file, "EXACT_PACKAGES", ())))


def library_patches() -> Iterator[Patch]:
    """Yields the patches of all libraries."""
    for exchange in exchanges():
        yield from exchange.patches()
    yield ExactPackages(exact_packages(), exact_code_in_graphs.follow)
    for file in _files():
        yield from (patch() for patch in getattr(file, "PATCHES", ()))
