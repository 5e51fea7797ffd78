"""Finds the modules that hold a module: once among all objects, and afterwards by torch's hook on registrations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from habana_mp import _core

#: Their slices are made by registering modules again.
_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)


class Holders:
    """The modules that hold other ones."""

    def __init__(self, changed: Callable[[], None]) -> None:
        #: By the identity of a module: the module, and those that held it when this was noted. (A class of modules may
        #: have no hash.)
        self._of: dict[int, tuple[weakref.ref[torch.nn.Module], list[weakref.ref[torch.nn.Module]]]] = {}
        self._hook: Any = None
        #: The modules whose place was looked for, and what is called when one of them gets another one.
        self._placed: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._changed = changed
        #: The modules on whose life places depend, by identity.
        self._ends: dict[int, weakref.ref[torch.nn.Module]] = {}

    def follow(self) -> None:
        """Begins to follow which modules hold which."""
        if self._hook is None:
            self._hook = torch.nn.modules.module.register_module_module_registration_hook(self._registered)
            for one in all_modules():
                self.note_parts(one)

    def forget(self) -> None:
        """Forgets everything, and leaves torch as it was."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._of.clear()
        self._placed.clear()
        self._ends.clear()

    def note_place(self, module: torch.nn.Module) -> None:
        """Notes that the place of this module was looked for."""
        self._placed[id(module)] = dropped_from(self._placed, module)

    def note_parts(self, module: torch.nn.Module) -> None:
        """Notes what this module holds. torch calls no hook for the parts of a module that was copied or unpickled."""
        if self._hook is None:
            return
        for part in parts_of(module):
            self._note(module, part)

    def outermost(self, module: torch.nn.Module) -> list[torch.nn.Module]:
        """Returns the modules that hold this one, at any depth, and that none holds."""
        self.follow()
        found: dict[int, torch.nn.Module] = {}
        seen = {id(module)}
        waiting = [module]
        while waiting:
            inner = waiting.pop()
            around = self._around(inner)
            if not around and inner is not module:
                found[id(inner)] = inner
            waiting += [one for one in around if id(one) not in seen]
            seen.update(map(id, around))
        return list(found.values())

    def are_around(self, module: torch.nn.Module) -> bool:
        """True if any module holds this one itself."""
        self.follow()
        return bool(self._around(module))

    def _around(self, module: torch.nn.Module) -> list[torch.nn.Module]:
        _, holders = self._of.get(id(module), (None, []))
        alive = [one for one in (reference() for reference in holders) if one is not None]
        return [one for one in alive if any(part is module for part in parts_of(one))]

    def _note(self, holder: torch.nn.Module, part: torch.nn.Module) -> None:
        reference, holders = self._of.get(id(part), (None, []))
        # not by `==`: a class may define it
        others = [one for one in holders if (other := one()) is not None and other is not holder]
        self._of[id(part)] = reference or dropped_from(self._of, part), [*others, weakref.ref(holder)]

    def _is_selection(self, holder: torch.nn.Module, module: torch.nn.Module) -> bool:
        """True if the holder is a container that belongs to no module, and gets a module that has a place: as the one
        that ``self.layers[:n]`` makes in each forward. No place depends on it."""
        return _is_container(holder) and not self._around(holder) and bool(self._around(module))

    def _registered(self, holder: torch.nn.Module, name: str, module: torch.nn.Module | None) -> None:
        if module is not None and self._is_selection(holder, module):
            return
        named: Any = vars(holder).get("_modules") or {}
        before = [named[name]] if name in named else []
        moved = [one for given in (module, *before) if given is not None for one in modules_in(given)]
        if any(id(one) in self._placed for one in moved):
            self.places_changed()
        if module is not None:
            for one in modules_in(module):
                if _is_container(one):
                    self.note_parts(one)  # it may have been a selection until now
            self._note(holder, module)

    def places_changed(self, _: object = None) -> None:
        """Lets all places be found anew."""
        self._placed.clear()
        self._ends.clear()
        self._changed()

    def note_end(self, holder: torch.nn.Module) -> None:
        """Lets all places be found anew when this module is dropped."""
        self._ends[id(holder)] = weakref.ref(holder, self.places_changed)


def dropped_from(known: dict[int, Any], module: torch.nn.Module) -> weakref.ref[torch.nn.Module]:
    """Returns a reference to a module whose entry goes with it: another one may get its identity."""
    key = id(module)
    return weakref.ref(module, lambda _: known.pop(key, None))


def _is_container(module: torch.nn.Module) -> bool:
    return any(type(module) is one for one in _CONTAINERS)  # `in` would call a metaclass's __eq__


def parts_of(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the modules that a module holds itself."""
    named = vars(module).get("_modules")  # None in a module that is being made
    return [] if named is None else [one for one in named.values() if one is not None]


def modules_in(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yields a module and all modules inside it, each once."""
    seen = {id(module)}
    waiting = [module]
    while waiting:
        one = waiting.pop()
        yield one
        new = [part for part in parts_of(one) if id(part) not in seen]
        seen.update(map(id, new))
        waiting += new


def named_modules(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields all modules inside a module under each of their names, and the module itself under an empty name. One that
    holds a module around it is not entered again."""
    entered: set[int] = set()

    def walk(one: torch.nn.Module, name: str) -> Iterator[tuple[str, torch.nn.Module]]:
        yield name, one
        entered.add(id(one))
        parts = vars(one).get("_modules")
        for part_name, part in [] if parts is None else list(parts.items()):
            if part is not None and id(part) not in entered:
                yield from walk(part, f"{name}.{part_name}" if name else part_name)
        entered.discard(id(one))

    return walk(module, "")


def all_modules() -> list[torch.nn.Module]:
    """Returns all modules of the process, except those that `gc.freeze()` has set aside, and those in which
    `nn.Module.__init__` did not run: they hold nothing."""
    return [one for one in _core.living(torch.nn.Module) if vars(one).keys() >= {"_modules", "_parameters"}]
