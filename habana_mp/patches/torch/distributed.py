"""The parts of torch.distributed that lists do not lower (rule 11)."""

from __future__ import annotations

from typing import Any

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
