"""What is done to a module of torch that may not have been imported yet."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls back when a module has been imported, without importing it."""

    def __init__(self, name: str, action: Callable[[types.ModuleType], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_tell(module: types.ModuleType) -> None:
            execute(module)
            self._action(module)

        loader.exec_module = execute_and_tell
        return spec


class WhenImported(ABC):
    """Something done to a module of torch while a policy is installed: at once, or as soon as it is imported."""

    name: str

    def __init__(self) -> None:
        self._finder: _AfterImport | None = None
        self._module: types.ModuleType | None = None

    def install(self) -> None:
        if self._finder is not None or self._module is not None:
            return
        if self.name in sys.modules:
            self._found(sys.modules[self.name])
        else:
            self._finder = _AfterImport(self.name, self._found)
            sys.meta_path.insert(0, self._finder)

    def uninstall(self) -> None:
        # At the very end of the interpreter there is no path any more.
        if self._finder is not None and self._finder in (sys.meta_path or ()):
            sys.meta_path.remove(self._finder)
        self._finder = None
        if self._module is not None:
            self.undo(self._module)
            self._module = None

    def _found(self, module: types.ModuleType) -> None:
        self._finder = None
        self._module = module
        self.do(module)

    @abstractmethod
    def do(self, module: Any) -> None: ...

    @abstractmethod
    def undo(self, module: Any) -> None: ...
