"""Numbers in tensors on an accelerator, which are brought into the range of a lower precision without a wait for it."""

from __future__ import annotations

import torch
from torch import Tensor

from habana_mp import _core
from habana_mp.patches.tools.patch import Patch, Settings


class NumbersOnDevices(Patch):
    """Gives the core a function that works on the device: it neither waits nor fails while a graph is captured."""

    def install(self, settings: Settings) -> None:
        clamp, isinf, where = map(
            _core.unpatched_copy,
            (torch._C._VariableFunctions.clamp, torch._C._VariableFunctions.isinf, torch._C._VariableFunctions.where),
        )

        def in_range(number: Tensor, limit: float) -> Tensor:
            """Returns the number with a finite value up to the limit. Infinities and NaN stay."""
            made: Tensor = where(isinf(number), number, clamp(number, -limit, limit))
            return made

        _core.set_number_in_range(in_range)

    def uninstall(self) -> None:
        _core.set_number_in_range(None)
