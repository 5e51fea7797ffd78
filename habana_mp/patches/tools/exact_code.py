"""Code whose own arithmetic lists do not lower (rule 11): of some libraries, and what ``convert(exact=...)`` names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from habana_mp import _core
from habana_mp.common import locks
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.patches.tools.when_imported import WhenImported
from habana_mp.policy.exact import NOTHING_EXACT, ExactCode, files_of


class _ExactModule(WhenImported):
    """A package or module, which may be imported later."""

    def __init__(self, name: str, changed: Callable[[], None]) -> None:
        super().__init__()
        self.name = name
        self.files: tuple[str, ...] = ()
        self._changed = changed

    def do(self, module: Any) -> None:
        self.files = files_of(module)
        self._changed()

    def undo(self, module: Any) -> None:
        self.files = ()
        self._changed()


class ExactPackages(Patch):
    """Code that needs exact arithmetic. Lists apply to what it calls: a network of torch modules is lowered.

    The caller of an operation that a list lowers is checked only once such code is imported.
    """

    def __init__(self, names: Iterable[str], follow: Callable[[bool], None]) -> None:
        #: Those that the package knows, and those that convert was given.
        self._known = {name: _ExactModule(name, self._tell) for name in names}
        self._given: dict[str, _ExactModule] = {}
        self._exact: ExactCode = NOTHING_EXACT
        #: Called with True if there is such code.
        self._follow = follow

    def install(self, settings: Settings) -> None:
        former, self._exact = self._given, settings.exact
        names = [name for name in settings.exact.modules if name not in self._known]
        self._given = {name: former.get(name) or _ExactModule(name, self._tell) for name in names}
        for name, one in former.items():
            if name not in self._given:
                one.uninstall()
        for one in (*self._known.values(), *self._given.values()):
            one.install(settings)
        self._tell()

    def uninstall(self) -> None:
        former, self._given, self._exact = self._given, {}, NOTHING_EXACT
        for one in (*self._known.values(), *former.values()):
            one.uninstall()
        self._tell()

    def _tell(self) -> None:
        with locks.imports:
            modules = (*self._known.values(), *self._given.values())
            files = (*(file for one in modules for file in one.files), *self._exact.files)
            codes = self._exact.codes
            is_any = bool(files or codes)
            _core.set_exact_code(files if is_any else None, codes or None)
            self._follow(is_any)
