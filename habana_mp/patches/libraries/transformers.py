"""The angles of rotary position embeddings are computed in float32, as the models of transformers require.

An angle is a position times a frequency: in bfloat16, position 1000 would be off by whole turns. Older releases of
transformers switch autocast off for it (``without_casts.PROTECTS``). Later ones call ``.float()``, which a list that
lowers ``mul`` cannot see.
"""

from __future__ import annotations

import types

from habana_mp.patches.tools.named_functions import ExchangedCodes, functions_of
from habana_mp.patches.tools.when_imported import WheneverImported
from habana_mp.patches.torch.without_casts import without_casts

_NAMES = ("*Rotary*.forward",)


class RotaryEmbeddings(WheneverImported):
    """Runs the forwards of rotary modules without casts. Models without such modules are unchanged."""

    #: The library's models, and those that are loaded with a model's files.
    packages = ("transformers.models.", "transformers_modules.")

    def __init__(self) -> None:
        super().__init__()
        self._codes = ExchangedCodes()

    def means(self, name: str) -> bool:
        return super().means(name) and ".modeling_" in name

    def do(self, module: types.ModuleType) -> None:
        for function in functions_of(module, _NAMES):
            self._codes.exchange(function, without_casts)

    def undo(self) -> None:
        self._codes.put_back()
