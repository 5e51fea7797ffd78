"""Angles of rotary position embeddings are made in float32, as the models of transformers ask for.

A position times a frequency is an angle: in bfloat16, position 1000 would be off by whole turns. Older releases switch
autocast off around it (``without_casts.PROTECTS``), later ones write ``.float()``, which a list that
lowers ``mul`` cannot see.
"""

from __future__ import annotations

import types

from habana_mp.patches.named_functions import exchange_code, functions_of
from habana_mp.patches.when_imported import WheneverImported
from habana_mp.patches.without_casts import without_casts

#: In the modules of models, those of the library and those that come with a model's files.
_PACKAGES = ("transformers.models.", "transformers_modules.")
_NAMES = ("*Rotary*.forward",)


class RotaryEmbeddings(WheneverImported):
    """The forwards of such modules run without casts. A model that has none is as it is."""

    def __init__(self) -> None:
        super().__init__()
        self._codes: dict[str, list[tuple[types.FunctionType, types.CodeType]]] = {}

    def means(self, name: str) -> bool:
        return name.startswith(_PACKAGES) and ".modeling_" in name

    def do(self, module: types.ModuleType) -> None:
        codes = self._codes.setdefault(module.__name__, [])
        for function in functions_of(module, _NAMES):
            codes.append((function, function.__code__))
            exchange_code(function, without_casts)

    def undo(self, module: types.ModuleType) -> None:
        for function, code in self._codes.pop(module.__name__, ()):
            function.__code__ = code
