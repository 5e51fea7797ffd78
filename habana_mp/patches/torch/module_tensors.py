"""Tensors of modules: Parameters, buffers, and tensors that are attributes of a module (rule 11).

While a list lowers arithmetic, the core must know all of them. It sees new Parameters and assigned attributes itself;
`stored_values.py` passes it the buffers that are registered. This file passes it the tensors of modules that exist
already, the buffers that `Module.to` and similar methods replace, and the tensors of a copied or unpickled module.
"""

from __future__ import annotations

import gc
from itertools import compress
from typing import Any

import torch

from habana_mp import _core
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_functions, originals

#: Methods that give a module other buffers without registering them.
REPLACES_BUFFERS: Table = {"torch.nn.modules.module": ("Module._apply", "Module.__setstate__")}


def follow() -> None:
    """Passes the core the tensors of all modules, and makes it follow new ones."""
    if _core.module_tensors_are_followed():
        return
    _core.follow_module_tensors(True)
    # By identity: isinstance would read `__class__`, and a set of classes would call their metaclass's `__hash__`. Both
    # may run user code.
    classes = classes_of_modules()
    objects = gc.get_objects()
    for module in compress(objects, map(classes.__contains__, map(id, map(type, objects)))):
        _tell_of(module)


def stop() -> None:
    """Makes the core forget these tensors."""
    _core.follow_module_tensors(False)


def classes_of_modules() -> dict[int, type]:
    """Returns the class of modules and all classes that derive from it, by their identities."""
    found: dict[int, type] = {}
    new: list[type] = [torch.nn.Module]
    while new:
        found |= {id(one): one for one in new}
        below = [one for base in new for one in type.__subclasses__(base)]
        new = [one for one in below if id(one) not in found]
    return found


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
    return result


_MODULES = assumption_of_functions(
    "torch.methods-that-replace-buffers",
    "`torch.nn.Module` has the methods by which a module gets other buffers: `_apply` and `__setstate__`",
    "arithmetic on buffers of a module that was moved or copied may be lowered",
)

EXCHANGES = (Exchange(remember_afterwards, REPLACES_BUFFERS, assumption=_MODULES, positional=1),)
