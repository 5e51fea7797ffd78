"""Where a module is: its path in the outermost module, for the report and for rules by module.

The path is that of ``named_modules()``, without modules that only wrap another one. The outermost module is the one
whose forward runs, or the larger module that holds it if it is called alone, as the encoder in ``generate``.
"""

from __future__ import annotations

import atexit
import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from habana_mp import _core
from habana_mp.patches.tools.compiled_functions import run_by_python
from habana_mp.patches.tools.named_functions import Exchange, assumption_of_functions
from habana_mp.patches.torch.export import is_exported_with_rules
from habana_mp.patches.torch.module_holders import Holders, all_modules, dropped_from, named_modules, parts_of
from habana_mp.policy.kept import AS_EXPORTED, precision_kept_in
from habana_mp.policy.patterns import Path

#: Modules that wrap another one and pass calls on, and their attribute for it. They do not appear in a path.
_WRAPPERS = {
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "ModuleToTrace": "_export_root",
    "Wrapper": "_export_root",  # both are made by torch.export
}

#: The same for classes of peft, and those that derive from them, by full names.
_WRAPPERS_OF_PEFT = {
    "peft.peft_model.PeftModel": "base_model",
    "peft.tuners.tuners_utils.BaseTuner": "model",
    "peft.tuners.tuners_utils.BaseTunerLayer": "base_layer",
}

#: Root modules by identity, and their names: the name of the class, with the first number from 2 on that no other one
#: has if others of the class live.
_roots: dict[int, tuple[weakref.ref[torch.nn.Module], str]] = {}

#: The names of all modules inside a module, by its identity: found once, and found again after a change. Behind them,
#: the classes of modules that have none: a forward may make one in each call.
_names: dict[int, tuple[weakref.ref[torch.nn.Module], dict[int, list[str]], set[type]]] = {}


def _identity(module: torch.nn.Module) -> int:
    """Returns the identity of a module's attributes. While torch.export traces it, other objects with the same
    attributes stand for it and for the modules inside."""
    return id(vars(module))


def _is_at(outer: torch.nn.Module, name: str, module: torch.nn.Module) -> bool:
    found: Any = outer
    for part in name.split(".") if name else ():
        parts = {} if found is None else vars(found).get("_modules")
        found = parts[part] if parts is not None and part in parts else None
    return found is not None and _identity(found) == _identity(module)


def _forget_names() -> None:
    _names.clear()
    _core.forget_module_names()


holders = Holders(_forget_names)


def forget() -> None:
    """Forgets where modules are, and leaves torch as it was."""
    holders.forget()
    _core.forget_module_names()


atexit.register(forget)  # when modules die after that, there is no code left that they could call


def outermost_modules() -> list[torch.nn.Module]:
    """Returns all modules that no other one holds. Looks through all objects."""
    modules = all_modules()
    held = {id(part) for one in modules for part in parts_of(one)}
    return [one for one in modules if id(one) not in held]


@run_by_python
def module_name(module: Any, around: list[Any]) -> tuple[int, str, str]:
    """Returns the place of a module among the modules around it: the number of modules to go outwards (-1 for a root),
    its name there, and the name of its class. Its name is empty if it has no place of its own in a path."""
    kind = type(module).__name__
    holders.note_place(module)
    if found := _held_by(module, around):
        steps, outer, names = found
        return steps, ".".join(path_in(outer, names[0])), kind
    if around:
        return 0, f"<{kind}>", kind
    outer, names = _outermost_of(module)[0]
    return -1, ".".join((_root_name(unwrapped(outer)), *path_in(outer, names[0]))), type(unwrapped(module)).__name__


def _held_by(module: torch.nn.Module, around: Sequence[Any]) -> tuple[int, torch.nn.Module, list[str]] | None:
    """Returns which of the modules around holds a module, how far outwards that is, and its names there. One that has a
    place itself goes before one that a forward has made."""
    first = None
    for steps, outer in enumerate(around):
        if outer is not None and (names := _names_in(module, outer)):
            further = [one for one in around[steps + 1 :] if one is not None]
            if not further or any(_names_in(outer, one) for one in further):
                return steps, outer, names
            first = first or (steps, outer, names)
    return first


def _names_in(module: torch.nn.Module, outer: torch.nn.Module) -> list[str]:
    """Returns the names of a module inside another one, the first one first. A shared module has several; a replica of
    the other module has an empty name."""
    if _is_replica_of(module, outer):
        return [""]
    _, known, nameless = _names.get(id(outer), (None, {}, set()))
    names = known.get(_identity(module), [])
    if not names and type(module) in nameless and not holders.are_around(module):
        return []
    if not names or any(not _is_at(outer, name, module) for name in names):
        found: dict[int, list[str]] = {}
        for name, inner in named_modules(outer):
            found.setdefault(_identity(inner), []).append(name)
        names = found.get(_identity(module), [])
        nameless = nameless if names else {*nameless, type(module)}
        _names[id(outer)] = dropped_from(_names, outer), found, nameless
    return [name for name in names if name]


def _outermost_of(module: torch.nn.Module) -> list[tuple[torch.nn.Module, list[str]]]:
    """Returns the models that hold a module, or what it wraps, with its names there. If no model holds it, returns the
    module itself."""
    inner = unwrapped(module)
    found = [(one, names) for one in holders.outermost(inner) if (names := _names_in(inner, one))]
    models = [(one, names) for one, names in found if unwrapped(one) is not inner]
    for one, _ in models:
        holders.note_end(one)
    return models or found or [(module, [""])]


class Tree(NamedTuple):
    """An outermost module, and the paths of a module in it."""

    outermost: torch.nn.Module
    paths: frozenset[Path]


def trees_of(chain: Iterable[Any]) -> list[Tree]:
    """Returns the trees to which a running module belongs: several if several models hold a module that is called
    alone. ``chain``: the module, and those around it from the innermost outwards; None for one that does not exist any
    more."""
    trees: dict[int, list[Tree]] = {}
    found: list[Tree] = []
    running = [one for one in chain if one is not None]
    for place, module in reversed(list(enumerate(running))):
        held = _held_by(module, running[place + 1 :])
        found = [
            Tree(tree.outermost, _inside(tree.paths, outer, names))
            for outer, names in ([held[1:]] if held else _outermost_of(module))
            for tree in trees.get(id(outer), [Tree(outer, frozenset({()}))])
        ]
        trees[id(module)] = found
    return found


def precisions_kept_in(chain: Iterable[Any]) -> set[str | None]:
    """Returns the precision in which the innermost kept module keeps what runs: the running module, those around it,
    and those that hold it. Several if models disagree that hold a module which is called alone. ``chain``: as above."""
    running = [one for one in chain if one is not None]
    for place, module in enumerate(running):
        if (own := _kept(module)) is not None:
            return {own}
        if holder := _held_by(module, running[place + 1 :]):
            _, outer, names = holder
            found = {_kept_between(outer, name) for name in names}
        else:
            found = {_kept_between(one, name) or _kept(one) for one, names in _outermost_of(module) for name in names}
        if found != {None}:
            return found
    return {None}


def _kept(module: torch.nn.Module) -> str | None:
    return AS_EXPORTED if is_exported_with_rules(module) else precision_kept_in(unwrapped(module))


def _kept_between(outer: Any, name: str) -> str | None:
    """Returns the precision of the innermost kept module between a module and one inside it, or None: that of a
    container, or of a module whose part is called without it."""
    kept_in = None
    for part in name.split(".")[:-1]:
        outer = getattr(outer, part)
        kept_in = precision_kept_in(outer) or kept_in
    return kept_in


def _inside(paths: frozenset[Path], outer: torch.nn.Module, names: Iterable[str]) -> frozenset[Path]:
    return frozenset((*path, *path_in(outer, name)) for path in paths for name in names)


class Place(NamedTuple):
    """A module in an outermost module: its name there, and its path, which is without wrappers."""

    name: str
    path: Path
    module: torch.nn.Module


def places_in(outermost: torch.nn.Module) -> Iterator[Place]:
    """Yields the places of all modules in an outermost module."""
    for name, module in named_modules(outermost):
        yield Place(name, path_in(outermost, name), module)


def all_paths(outermost: torch.nn.Module) -> list[Path]:
    """Returns the paths of all modules in an outermost module."""
    return [place.path for place in places_in(outermost)]


def class_names(outermost: torch.nn.Module) -> tuple[str, ...]:
    """Returns the names by which a pattern may mean the outermost module: those of its class and its base classes.
    FSDP2 and parametrizations derive a class from the module's own."""
    classes = type(unwrapped(outermost)).__mro__
    return tuple(one.__name__ for one in classes[: classes.index(torch.nn.Module)])


def wrapped_by(module: Any) -> str | None:
    """Returns the name of the attribute that holds a wrapper's module, or None for any other module."""
    name = _WRAPPERS.get(type(module).__name__)
    for kind in type(module).__mro__ if name is None else ():
        name = name or _WRAPPERS_OF_PEFT.get(f"{kind.__module__}.{kind.__qualname__}")
    return name if name is not None and isinstance(getattr(module, name, None), torch.nn.Module) else None


def unwrapped(module: Any) -> Any:
    """Returns the module that a wrapper, or a wrapper of wrappers, wraps; any other module itself."""
    while (name := wrapped_by(module)) is not None:
        module = getattr(module, name)
    return module


def path_in(outer: Any, name: str) -> Path:
    """Returns the path of a module in another one, from its name there."""
    parts = []
    for part in name.split(".") if name else ():
        if wrapped_by(outer) != part:
            parts.append(part)
        outer = getattr(outer, part)
    return tuple(parts)


def _is_replica_of(module: Any, outer: Any) -> bool:
    """True for one of the modules that nn.DataParallel makes for each call."""
    return getattr(module, "_is_replica", False) and isinstance(outer, torch.nn.DataParallel)


def _root_name(module: Any) -> str:
    kind = type(module).__name__
    if getattr(module, "_is_replica", False):
        return kind
    known = _roots.get(id(module))
    if known is None or known[0]() is not module:
        taken = {name for reference, name in list(_roots.values()) if reference() is not None}
        numbered = (f"{kind}#{number}" for number in itertools.count(2))
        name = kind if kind not in taken else next(one for one in numbered if one not in taken)
        known = _roots[id(module)] = dropped_from(_roots, module), name
    return known[1]


def noted_afterwards(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Runs in place of the method that fills a module which is copied or unpickled. torch calls no hook for the modules
    that it holds."""
    result = original(*arguments, **keywords)
    holders.note_parts(arguments[0])
    return result


_FILLED = assumption_of_functions(
    "torch.methods-that-fill-modules",
    "a module that is copied or unpickled is filled by `Module.__setstate__`",
    "a part of a copied model that is called alone has no path, so that no rule by module applies",
)

EXCHANGES = (Exchange(noted_afterwards, {"torch.nn.modules.module": ("Module.__setstate__",)}, _FILLED, positional=1),)
