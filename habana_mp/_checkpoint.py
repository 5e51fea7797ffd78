"""Activation checkpointing: the second run of a block casts what the first one cast.

``torch.utils.checkpoint`` runs the block again in the backward, under ``torch.autocast`` as it was in the forward, and
autocast that was off then is entered as ``enabled=False``, which rule 10 would take for the model's own wish. So what
was in force in the first run goes along with the block.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.checkpoint

from habana_mp import _core
from habana_mp._composites import Replacement

_FLAG = _core.disabled_flag


class AsWhenGiven:
    """A block, and whether casts were on when it was given away to be run later or by another thread."""

    def __init__(self, block: Any) -> None:
        self._block = block
        self._disabled = torch.is_autocast_enabled(_FLAG)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        disabled = torch.is_autocast_enabled(_FLAG)
        torch.set_autocast_enabled(_FLAG, self._disabled)
        try:
            return self._block(*args, **kwargs)
        finally:
            torch.set_autocast_enabled(_FLAG, disabled)


def checkpoint_replacement() -> Replacement:
    """torch.utils.checkpoint.checkpoint, with the block made to remember."""

    def call(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if arguments and callable(arguments[0]):
            arguments = (AsWhenGiven(arguments[0]), *arguments[1:])
        elif callable(keywords.get("function")):
            keywords = {**keywords, "function": AsWhenGiven(keywords["function"])}
        return original(*arguments, **keywords)

    return Replacement(torch.utils.checkpoint.checkpoint, call)
