"""Whose own code is not lowered by lists: torch.distributed's, and that of libraries that compute exactly (rule 11)."""

from __future__ import annotations

from typing import Any, ClassVar

from habana_mp import _core
from habana_mp.patches.tools.when_imported import WhenImported

#: Those parts of torch.distributed that handle parameters and gradients in Python.
DISTRIBUTED = ("torch.distributed.fsdp", "torch.distributed.algorithms.ddp_comm_hooks")


class DistributedCode(WhenImported):
    """One of them. Only where one is imported does each cast ask who calls."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def do(self, module: Any) -> None:
        _core.set_distributed_is_imported(True)

    def undo(self, module: Any) -> None:
        _core.set_distributed_is_imported(False)


#: Libraries whose own arithmetic is not lowered: they factorise matrices that bfloat16 leaves without an inverse, or
#: add up what is compared to the last digit. What they call stays covered: a network of torch's modules is lowered.
EXACT_LIBRARIES = ("botorch", "gpytorch", "linear_operator", "torchmetrics")


class ExactLibrary(WhenImported):
    """One of them. Only where one is imported is it asked, before a list lowers something, who calls."""

    files: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def do(self, module: Any) -> None:
        self._set([*self.files, *(f"{path}/" for path in module.__path__)])

    def undo(self, module: Any) -> None:
        self._set([])  # all of them are taken out at once

    def _set(self, files: list[str]) -> None:
        type(self).files = files
        _core.set_exact_files(tuple(files) or None)
