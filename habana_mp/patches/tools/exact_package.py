"""Packages whose own arithmetic lists do not lower (rule 11)."""

from __future__ import annotations

from typing import Any, ClassVar

from habana_mp import _core
from habana_mp.patches.tools.when_imported import WhenImported


class ExactPackage(WhenImported):
    """A package that needs exact arithmetic. Lists apply to what it calls: a network of torch modules is lowered.

    The caller of an operation that a list lowers is checked only once such a package is imported.
    """

    files: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def do(self, module: Any) -> None:
        self._set([*self.files, *(f"{path}/" for path in module.__path__)])

    def undo(self, module: Any) -> None:
        self._set([])  # all packages are uninstalled at once

    def _set(self, files: list[str]) -> None:
        type(self).files = files
        _core.set_exact_files(tuple(files) or None)
