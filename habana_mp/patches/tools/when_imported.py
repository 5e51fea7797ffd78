"""Patches of modules that may not have been imported yet."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from habana_mp.common import locks
from habana_mp.common.specs import spec_in
from habana_mp.patches.tools.patch import Patch, Settings


class _Finder(importlib.abc.MetaPathFinder):
    """Notifies patches that wait for a module when it has been imported, without importing it."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[WhenImported]] = {}
        self._waiting_for_many: list[WheneverImported] = []
        self._finding: set[str] = set()

    def add(self, part: WhenImported) -> None:
        self._waiting.setdefault(part.name, []).append(part)
        self._begin()

    def remove(self, part: WhenImported) -> None:
        others = [one for one in self._waiting.pop(part.name, []) if one is not part]
        if others:
            self._waiting[part.name] = others
        self._end()

    def add_for_many(self, part: WheneverImported) -> None:
        self._waiting_for_many = [*self._waiting_for_many, part]
        self._begin()

    def remove_for_many(self, part: WheneverImported) -> None:
        self._waiting_for_many = [one for one in self._waiting_for_many if one is not part]
        self._end()

    def _begin(self) -> None:
        if self not in sys.meta_path:
            # A new list, here and below: another thread may be iterating over the old one.
            sys.meta_path = [self, *sys.meta_path]

    def _end(self) -> None:
        # At the very end of the interpreter `sys.meta_path` is None.
        if not self._waiting and not self._waiting_for_many and self in (sys.meta_path or ()):
            sys.meta_path = [one for one in sys.meta_path if one is not self]

    def _is_waited_for(self, fullname: str) -> bool:
        return fullname in self._waiting or any(one.means(fullname) for one in self._waiting_for_many)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in self._finding or not self._is_waited_for(fullname):
            return None
        self._finding.add(fullname)
        try:
            spec = spec_in(fullname, path)
        finally:
            self._finding.discard(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_tell(module: types.ModuleType) -> None:
            execute(module)
            if module.__name__ != fullname:
                return  # all modules of an archive share one loader
            if vars(loader).get("exec_module") is execute_and_tell:
                del loader.exec_module
            with locks.imports:
                parts = [one for one in self._waiting_for_many if one.means(fullname)]
                for part in (*self._waiting.get(fullname, ()), *parts):
                    part.found(module)

        loader.exec_module = execute_and_tell
        return spec


_finder = _Finder()

#: Default settings: these patches depend on none of them.
_ANY = Settings()


class WhenImported(Patch):
    """Changes a module while lists are in force: at once, or as soon as it is imported."""

    name: str

    def __init__(self) -> None:
        self._is_waiting = False
        self._module: types.ModuleType | None = None

    def install(self, settings: Settings = _ANY) -> None:
        with locks.imports:
            if self._is_waiting or self._module is not None:
                return
            self._is_waiting = True
            _finder.add(self)
        if self.name in sys.modules:
            # Another thread may be importing it at this moment: this waits until the import is complete.
            module = importlib.import_module(self.name)
            with locks.imports:
                self.found(module)

    def uninstall(self) -> None:
        with locks.imports:
            self._stop_waiting()
            if self._module is not None:
                self.undo(self._module)
                self._module = None

    def found(self, module: types.ModuleType) -> None:
        """Called once, when the module has been imported."""
        if self._is_waiting:
            self._stop_waiting()
            self._module = module  # before the change, which an exception of a signal handler may interrupt
            self.do(module)

    def _stop_waiting(self) -> None:
        self._is_waiting = False
        _finder.remove(self)

    @abstractmethod
    def do(self, module: Any) -> None: ...

    @abstractmethod
    def undo(self, module: Any) -> None:
        """Undoes the change, even if it is only partly done."""


class WheneverImported(Patch):
    """Changes many modules of some packages while lists are in force: at once, or as soon as each is imported."""

    #: Prefixes of the names of the modules.
    packages: tuple[str, ...]

    def __init__(self) -> None:
        self._is_waiting = False
        self._names: set[str] = set()

    def means(self, name: str) -> bool:
        """True if the patch is for the module of this name."""
        return name.startswith(self.packages)

    def install(self, settings: Settings = _ANY) -> None:
        with locks.imports:
            if self._is_waiting:
                return
            self._is_waiting = True
            _finder.add_for_many(self)
        if not any(package.partition(".")[0] in sys.modules for package in self.packages):
            return  # a search through all modules takes longer than many patches
        for name in [name for name in list(sys.modules) if self.means(name)]:
            module = importlib.import_module(name)  # waits for another thread that is importing it
            with locks.imports:
                self.found(module)

    def uninstall(self) -> None:
        with locks.imports:
            self._is_waiting = False
            _finder.remove_for_many(self)
            self._names.clear()
            self.undo()

    def found(self, module: types.ModuleType) -> None:
        """Called when a module has been imported."""
        if self._is_waiting and module.__name__ not in self._names:
            self._names.add(module.__name__)
            self.do(module)

    @abstractmethod
    def do(self, module: Any) -> None: ...

    @abstractmethod
    def undo(self) -> None:
        """Undoes the changes in all modules, even those that are only partly done."""
