"""Code that lists do not lower (rule 11): torch.distributed, and libraries that compute exactly."""

from __future__ import annotations

from typing import Any, ClassVar

from habana_mp import _core
from habana_mp.patches.tools.when_imported import WhenImported

#: The parts of torch.distributed that handle parameters and gradients in Python.
DISTRIBUTED = ("torch.distributed.fsdp", "torch.distributed.algorithms.ddp_comm_hooks")


class DistributedCode(WhenImported):
    """One of these parts. The caller of a cast is checked only once one of them is imported."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def do(self, module: Any) -> None:
        _core.set_distributed_is_imported(True)

    def undo(self, module: Any) -> None:
        _core.set_distributed_is_imported(False)


#: Libraries whose own arithmetic is not lowered: they factorise matrices that are singular in bfloat16, or sum values
#: that are compared to the last digit. Lists apply to the code that they call: a network of torch modules is lowered.
EXACT_LIBRARIES = ("botorch", "gpytorch", "linear_operator", "torchmetrics")


class ExactLibrary(WhenImported):
    """One of these libraries. The caller of an operation that a list lowers is checked only once one is imported."""

    files: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def do(self, module: Any) -> None:
        self._set([*self.files, *(f"{path}/" for path in module.__path__)])

    def undo(self, module: Any) -> None:
        self._set([])  # all libraries are uninstalled at once

    def _set(self, files: list[str]) -> None:
        type(self).files = files
        _core.set_exact_files(tuple(files) or None)
