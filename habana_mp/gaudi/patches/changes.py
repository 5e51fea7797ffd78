"""Changes to torch, to Python and to libraries that are undone together."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from habana_mp.patches.tools.exchange import Call, Exchanged
from habana_mp.patches.tools.when_imported import CalledWhenImported


class Changes(ExitStack):
    """The changes that the stand-in has made. ``close`` undoes them, the latest first."""

    def exchange(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute."""
        exchanged = Exchanged()
        self.callback(exchanged.put_back)
        exchanged.exchange(owner, name, value)

    def replace(self, function: Any, call: Call) -> None:
        """Makes calls of a function of Python go to ``call(original, arguments, keywords)``."""
        exchanged = Exchanged()
        self.callback(exchanged.put_back)
        exchanged.replace(function, call)

    def edit(self, function: Any, change: Callable[[dict[str, Any]], None]) -> None:
        """Makes ``change`` edit the arguments of a function of Python, which it gets by name."""
        signature = inspect.signature(function)

        def call(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            try:
                bound = signature.bind(*arguments, **keywords)
            except TypeError:
                return original(*arguments, **keywords)  # which raises the appropriate error
            change(bound.arguments)
            return original(*bound.args, **bound.kwargs)

        self.replace(function, call)

    def when_imported(self, name: str, change: Callable[[Any], None]) -> None:
        """Calls ``change`` with the module of this name: now, or as soon as it is imported."""
        patch = CalledWhenImported(name, change)
        self.callback(patch.uninstall)
        patch.install()
