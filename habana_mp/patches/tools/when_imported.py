"""Patches of modules that may not have been imported yet."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from habana_mp.common import locks
from habana_mp.common.specs import spec_in
from habana_mp.patches.tools.exchange import Exchanged
from habana_mp.patches.tools.patch import Patch, Settings


class _Finder(importlib.abc.MetaPathFinder):
    """Notifies patches that wait for a module when it has been imported, without importing it."""

    def __init__(self) -> None:
        #: Always a new dict, as the list `sys.meta_path` below: another thread may be iterating over the old one.
        self._waiting: dict[WhenImported, None] = {}
        self._finding: set[str] = set()

    def add(self, part: WhenImported) -> None:
        self._waiting = {**self._waiting, part: None}
        if self not in sys.meta_path:
            sys.meta_path = [self, *sys.meta_path]

    def remove(self, part: WhenImported) -> None:
        waiting = self._waiting.copy()
        waiting.pop(part, None)
        self._waiting = waiting
        # At the very end of the interpreter `sys.meta_path` is None.
        if not self._waiting and self in (sys.meta_path or ()):
            sys.meta_path = [one for one in sys.meta_path if one is not self]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in self._finding or not any(one.means(fullname) for one in self._waiting):
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
                for part in self._waiting:
                    if part.means(fullname):
                        part.found(module)

        loader.exec_module = execute_and_tell
        return spec


_finder = _Finder()

#: Default settings: these patches depend on none of them.
NO_SETTINGS = Settings()


class WhenImported(Patch):
    """Changes a module while lists are in force: at once, or as soon as it is imported."""

    name: str

    def __init__(self) -> None:
        self._is_waiting = False
        #: The modules that were found, by their names.
        self._modules: dict[str, types.ModuleType] = {}
        #: :meth:`do` exchanges code and attributes by this.
        self.exchanged = Exchanged()

    def means(self, name: str) -> bool:
        """True if the patch is for the module of this name."""
        return name == self.name

    def imported(self) -> list[str]:
        """Returns the names of these modules that are imported, or are being imported."""
        return [self.name] if self.name in sys.modules else []

    def install(self, settings: Settings = NO_SETTINGS) -> None:
        with locks.imports:
            if self._is_waiting:
                return
            self._is_waiting = True
            _finder.add(self)
        for name in self.imported():
            # Another thread may be importing it at this moment: this waits until the import is complete.
            module = importlib.import_module(name)
            with locks.imports:
                self.found(module)

    def uninstall(self) -> None:
        with locks.imports:
            self._is_waiting = False
            _finder.remove(self)
            for module in self._modules.values():
                self.undo(module)
            self._modules.clear()
            self.exchanged.put_back()

    def found(self, module: types.ModuleType) -> None:
        """Called when a module has been imported."""
        if self._is_waiting and module.__name__ not in self._modules:
            self._modules[module.__name__] = module  # before the change, which a signal handler may interrupt
            self.do(module)

    @abstractmethod
    def do(self, module: Any) -> None: ...

    def undo(self, module: Any) -> None:
        """Undoes what is more than exchanged, even if it is only partly done."""
        return None


class CalledWhenImported(WhenImported):
    """Calls a function with the module of this name, and another one when that is undone."""

    def __init__(self, name: str, do: Callable[[Any], None], undo: Callable[[Any], None] = lambda _: None) -> None:
        super().__init__()
        self.name, self._do, self._undo = name, do, undo

    def do(self, module: Any) -> None:
        self._do(module)

    def undo(self, module: Any) -> None:
        self._undo(module)
