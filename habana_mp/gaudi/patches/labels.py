"""Labels in int32, which Gaudi's losses take."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from habana_mp.gaudi.patches.names import with_arguments
from habana_mp.patches.tools.code_exchange import Replacement
from habana_mp.patches.tools.patch import Patch, Settings


class HpuLabels(Patch):
    """Makes ``cross_entropy`` and ``nll_loss`` take labels in int32, which torch's kernels refuse."""

    def __init__(self) -> None:
        self._replacements: list[Replacement] = []

    def install(self, settings: Settings) -> None:
        if self._replacements:
            return
        functions: tuple[Any, ...] = (F.cross_entropy, F.nll_loss)
        self._replacements = [Replacement(one, with_arguments(one, _widen)) for one in functions]
        for replacement in self._replacements:
            replacement.install()

    def uninstall(self) -> None:
        while self._replacements:
            self._replacements.pop().uninstall()


def _widen(arguments: dict[str, Any]) -> None:
    target = arguments.get("target")
    if isinstance(target, torch.Tensor) and target.dtype is torch.int32:
        arguments["target"] = target.long()
