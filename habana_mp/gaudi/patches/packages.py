"""``torch.hpu`` for the script, and ``importlib.util.find_spec`` for libraries."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch

from habana_mp.common.ledger import Assumption, holds
from habana_mp.gaudi.patches.names import Meaning
from habana_mp.patches.tools.code_exchange import Replacement
from habana_mp.patches.tools.exchanged_attributes import ExchangedAttributes
from habana_mp.patches.tools.patch import Patch, Settings

_LAZY_NAMES = Assumption(
    "torch.lazy-names",
    assumed="torch is a module with a __getattr__ of its own, and has no `hpu`",
    check="it is looked for",
    otherwise="there is no torch.hpu; `import habana_frameworks.torch.hpu` works",
)


class HpuModule(Patch):
    """``torch.hpu`` for the script's own code only. Libraries would take it as a sign of an HPU."""

    def __init__(self, meaning: Meaning) -> None:
        self._meaning = meaning
        self._attributes = ExchangedAttributes()

    def install(self, settings: Settings) -> None:
        if not holds(_LAZY_NAMES, lambda: callable(vars(torch)["__getattr__"]) and "hpu" not in vars(torch)):
            return
        torchs: Any = vars(torch)["__getattr__"]
        is_script = self._meaning.is_script

        def find(name: str) -> Any:
            frame = inspect.currentframe()
            if name == "hpu" and frame is not None and is_script(frame.f_back):
                return importlib.import_module("habana_frameworks.torch.hpu")
            with warnings.catch_warnings(record=True) as caught:
                found = torchs(name)
            for one in caught:  # attributed to the caller, as torch does
                warnings.warn(one.message, one.category, stacklevel=2)
            return found

        self._attributes.exchange(torch, "__getattr__", find)

    def uninstall(self) -> None:
        self._attributes.put_back()


class AnswersToLibraries(Patch):
    """Hides the stand-in's packages from libraries that call ``importlib.util.find_spec``, which finds imported modules
    without a finder."""

    def __init__(self, roots: Collection[str], a_library_asks: Callable[[], bool]) -> None:
        self._roots = roots
        self._a_library_asks = a_library_asks
        self._replacement: Replacement | None = None

    def install(self, settings: Settings) -> None:
        if self._replacement is None:
            self._replacement = Replacement(importlib.util.find_spec, self._find)
            self._replacement.install()

    def uninstall(self) -> None:
        if self._replacement is not None:
            self._replacement.uninstall()
            self._replacement = None

    def _find(self, original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        name = arguments[0] if arguments else keywords.get("name")
        is_ours = isinstance(name, str) and name.partition(".")[0] in self._roots
        return None if is_ours and self._a_library_asks() else original(*arguments, **keywords)
