"""Tensors of modules: Parameters, buffers, and tensors that are attributes of a module (rule 11).

While a list lowers arithmetic, the core must know all of them. It sees new Parameters and assigned attributes itself;
`stored_values.py` passes it the buffers that are registered. This file passes it the tensors of modules that exist
already, the buffers that `Module.to` and similar methods replace, and the tensors of a copied or unpickled module.
"""

from __future__ import annotations

from typing import Any

import torch

from habana_mp import _core
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_functions, originals
from habana_mp.patches.torch.module_holders import all_modules
from habana_mp.patches.torch.module_paths import holders

#: Methods that give a module other buffers without registering them.
REPLACES_BUFFERS: Table = {"torch.nn.modules.module": ("Module._apply", "Module.__setstate__")}


def follow() -> None:
    """Passes the core the tensors of all modules, and makes it follow new ones."""
    if _core.module_tensors_are_followed():
        return
    _core.follow_module_tensors(True)
    for module in all_modules():
        _tell_of(module)


def stop() -> None:
    """Makes the core forget these tensors."""
    _core.follow_module_tensors(False)


def _tell_of(module: torch.nn.Module) -> None:
    attributes = vars(module)
    for tensors in (attributes, attributes.get("_parameters"), attributes.get("_buffers")):
        for one in list(tensors.values()) if isinstance(tensors, dict) else ():
            _core.remember_module_tensor(one)


def remember_afterwards(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Runs in place of a method that gives its module other buffers."""
    result = originals[name](*arguments, **keywords)
    if _core.module_tensors_are_followed():
        _tell_of(arguments[0])
    holders.note_parts(arguments[0])
    return result


_MODULES = assumption_of_functions(
    "torch.methods-that-replace-buffers",
    "`torch.nn.Module` has the methods by which a module gets other buffers: `_apply` and `__setstate__`",
    "arithmetic on buffers of a module that was moved or copied may be lowered",
)

EXCHANGES = (Exchange(remember_afterwards, REPLACES_BUFFERS, assumption=_MODULES, positional=1),)
