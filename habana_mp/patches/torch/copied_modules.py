"""Modules that were copied or unpickled: what they hold, and the precision in which they are kept."""

from __future__ import annotations

from typing import Any

from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_functions
from habana_mp.patches.torch.module_holders import named_modules
from habana_mp.patches.torch.module_paths import holders
from habana_mp.policy.kept import copy_kept

#: The method that fills a module that is copied or unpickled. torch calls no hook for the modules that it holds.
FILLS: Table = {"torch.nn.modules.module": ("Module.__setstate__",)}

#: Methods that copy a module without calling it, and leave out attributes.
COPIES: Table = {"torch.fx.graph_module": ("GraphModule.__deepcopy__", "GraphModule.__copy__")}


def noted_afterwards(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Runs in place of a method that fills a module."""
    result = original(*arguments, **keywords)
    holders.note_parts(arguments[0])
    return result


def copied_with_attributes(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Runs in place of a method that copies its module and leaves out attributes."""
    copied = original(*arguments, **keywords)
    copies = dict(named_modules(copied))
    for path, module in named_modules(arguments[0]):
        if path in copies:
            copy_kept(module, copies[path])
    holders.note_parts(copied)
    return copied


_FILLED = assumption_of_functions(
    "torch.methods-that-fill-modules",
    "a module that is copied or unpickled is filled by `Module.__setstate__`",
    "a part of a copied model that is called alone has no path, so that no rule by module applies",
)

_COPIES = assumption_of_functions(
    "torch.methods-that-copy-modules",
    "a GraphModule has the methods that copy it: `__deepcopy__` and `__copy__`",
    "a copy is not kept in the precision that `hmp.keep` has given to the module",
)

EXCHANGES = (
    Exchange(noted_afterwards, FILLS, assumption=_FILLED, positional=1),
    Exchange(copied_with_attributes, COPIES, assumption=_COPIES, positional=1),
)
