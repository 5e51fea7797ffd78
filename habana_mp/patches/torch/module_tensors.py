"""Tensors of modules: Parameters, buffers, and tensors that are attributes of a module (rule 11).

While a list lowers arithmetic, the core must know all of them. It sees new Parameters, and attributes that are assigned
or read through `Module.__getattr__`; `stored_values.py` passes it the buffers that are registered. This file passes it
the tensors of modules that exist already, the buffers that `Module.to` and similar methods replace, and the tensors of
a module that was copied, unpickled or compiled by torch.jit.
"""

from __future__ import annotations

from typing import Any

import torch

from habana_mp import _core
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_functions, originals
from habana_mp.patches.torch.module_holders import all_modules, named_modules, values_in
from habana_mp.patches.torch.module_paths import holders
from habana_mp.policy.kept import copy_kept

#: Methods that give a module other buffers without registering them.
REPLACES_BUFFERS: Table = {
    "torch.nn.modules.module": ("Module._apply", "Module.__setstate__"),
    "torch.jit._script": ("RecursiveScriptModule._finalize_scriptmodule",),
}

#: Functions that give the tensor in their first argument other memory.
SETS_MEMORY: Table = {"torch.nn.utils.parametrize": ("_maybe_set",)}

#: Methods that copy a module without calling `Module.__setstate__`, and leave out attributes.
COPIES: Table = {"torch.fx.graph_module": ("GraphModule.__deepcopy__", "GraphModule.__copy__")}


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
        for one in values_in(tensors):
            _core.remember_module_tensor(one)


def remember_afterwards(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Runs in place of a method that gives its module other buffers."""
    result = originals[name](*arguments, **keywords)
    look_at(arguments[0])
    return result


def remember_with_other_memory(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Runs in place of a function that gives a module's tensor other memory."""
    result = originals[name](*arguments, **keywords)
    _core.remember_module_tensor(arguments[0])
    return result


def copied_with_attributes(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Runs in place of a method that copies its module and leaves out attributes."""
    copied = originals[name](*arguments, **keywords)
    copies = dict(named_modules(copied))
    for path, module in named_modules(arguments[0]):
        if path in copies:
            copy_kept(module, copies[path])
    look_at(copied)
    return copied


def look_at(module: torch.nn.Module) -> None:
    """Notes the tensors and the parts of a module that it may have got without its constructor."""
    if _core.module_tensors_are_followed():
        _tell_of(module)
    holders.note_parts(module)


_MODULES = assumption_of_functions(
    "torch.methods-that-replace-buffers",
    "torch's modules have the methods by which a module gets other buffers without registering them",
    "arithmetic on buffers of a module that was moved, copied or compiled by torch.jit may be lowered",
)

_MEMORY = assumption_of_functions(
    "torch.functions-that-set-memory",
    "parametrizations give a weight other memory by the function `_maybe_set`",
    "arithmetic on aliases of a weight that had a parametrization may be lowered",
)

_COPIES = assumption_of_functions(
    "torch.methods-that-copy-modules",
    "a GraphModule has the methods that copy it: `__deepcopy__` and `__copy__`",
    "a copy is not kept in the precision that `hmp.keep` has given to the module",
)

EXCHANGES = (
    Exchange(remember_afterwards, REPLACES_BUFFERS, assumption=_MODULES, positional=1),
    Exchange(remember_with_other_memory, SETS_MEMORY, assumption=_MEMORY, positional=1),
    Exchange(copied_with_attributes, COPIES, assumption=_COPIES, positional=1),
)
