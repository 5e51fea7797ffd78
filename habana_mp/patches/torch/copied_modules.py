"""Modules that were copied or unpickled: what they hold."""

from __future__ import annotations

from typing import Any

from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_functions
from habana_mp.patches.torch.module_paths import holders

#: The method that fills a module that is copied or unpickled. torch calls no hook for the modules that it holds.
FILLS: Table = {"torch.nn.modules.module": ("Module.__setstate__",)}


def noted_afterwards(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Runs in place of a method that fills a module."""
    result = original(*arguments, **keywords)
    holders.note_parts(arguments[0])
    return result


_FILLED = assumption_of_functions(
    "torch.methods-that-fill-modules",
    "a module that is copied or unpickled is filled by `Module.__setstate__`",
    "a part of a copied model that is called alone has no path, so that no rule by module applies",
)

EXCHANGES = (Exchange(noted_afterwards, FILLS, assumption=_FILLED, positional=1),)
