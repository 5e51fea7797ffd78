"""transformers: loading a model, and the angles of rotary position embeddings, run without casts.

An angle is a position times a frequency: in bfloat16, position 1000 would be off by whole turns. Older releases of
transformers switch autocast off for it (``maybe_autocast``). Later ones call ``.float()``, which a list that
lowers ``mul`` cannot see.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from habana_mp.patches.tools.casts_off import without_casts
from habana_mp.patches.tools.named_functions import Exchange, assumption_of_library, functions_of
from habana_mp.patches.tools.region_dtypes import lists_apply
from habana_mp.patches.tools.when_imported import WhenImported

_NAMES = ("*Rotary*.forward",)


class RotaryEmbeddings(WhenImported):
    """Runs the forwards of rotary modules without casts. Models without such modules are unchanged."""

    #: The library's models, and those that are loaded with a model's files.
    name = "transformers"
    _packages = ("transformers.models.", "transformers_modules.")

    def means(self, name: str) -> bool:
        return name.startswith(self._packages) and ".modeling_" in name

    def imported(self) -> list[str]:
        if self.name not in sys.modules:
            return []  # a search through all modules takes longer than many patches
        return [name for name in list(sys.modules) if self.means(name)]

    def do(self, module: Any) -> None:
        for function in functions_of(module, _NAMES):
            self.exchanged.replace(function, without_casts, is_read=True)


def protected(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that takes a device type, a dtype, and whether to enable autocast."""
    if arguments[2] is False and arguments[0] != "meta" and lists_apply():
        return torch.autocast(arguments[0], enabled=False)
    return original(*arguments, **keywords)


_FUNCTIONS = assumption_of_library(
    "transformers", "make weights, or switch autocast off for a block", ", and such a block too"
)

# A model that is loaded starts without memory, and computes its buffers after its constructor.
_LOADS = tuple(f"PreTrainedModel.{name}" for name in ("from_pretrained", "init_weights", "resize_token_embeddings"))
EXCHANGES = (
    Exchange(without_casts, {"transformers.modeling_utils": _LOADS}, _FUNCTIONS),
    # It switches autocast off for a block, but only if it finds autocast on (rule 10).
    Exchange(
        protected, {"transformers.utils.generic": ("maybe_autocast",)}, _FUNCTIONS, positional=3, names=("enabled",)
    ),
)

PATCHES = (RotaryEmbeddings,)
