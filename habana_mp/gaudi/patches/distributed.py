"""The backend ``"hccl"``, and the devices of ``DistributedDataParallel``."""

from __future__ import annotations

from typing import Any

import torch

from habana_mp.gaudi.patches.names import Meaning, with_arguments
from habana_mp.patches.tools.code_exchange import Replacement
from habana_mp.patches.tools.when_imported import WhenImported


class HpuProcessGroups(WhenImported):
    """Process groups: gloo or nccl, depending on the real device."""

    name = "torch.distributed.distributed_c10d"

    def __init__(self, meaning: Meaning) -> None:
        super().__init__()
        self._meaning = meaning
        self._replacements: list[Replacement] = []

    def do(self, module: Any) -> None:
        for name in ("init_process_group", "new_group"):
            function = getattr(module, name)
            self._replacements.append(Replacement(function, with_arguments(function, self._map)))
            self._replacements[-1].install()

    def undo(self, module: Any) -> None:
        while self._replacements:
            self._replacements.pop().uninstall()

    def _map(self, arguments: dict[str, Any]) -> None:
        if "backend" in arguments:
            arguments["backend"] = self._meaning.real_backend(arguments["backend"])
        if self._meaning.means(arguments.get("device_id")):
            real = self._meaning.real_of(arguments["device_id"], "torch.distributed")
            arguments["device_id"] = None if real.type == "cpu" else torch.device(real.type, real.index or 0)


class HpuDataParallel(WhenImported):
    """``device_ids`` and ``output_device``: both are None for a CPU."""

    name = "torch.nn.parallel.distributed"

    def __init__(self, meaning: Meaning) -> None:
        super().__init__()
        self._meaning = meaning
        self._replacement: Replacement | None = None

    def do(self, module: Any) -> None:
        function = module.DistributedDataParallel.__init__
        self._replacement = Replacement(function, with_arguments(function, self._map))
        self._replacement.install()

    def undo(self, module: Any) -> None:
        if self._replacement is not None:
            self._replacement.uninstall()
            self._replacement = None

    def _map(self, arguments: dict[str, Any]) -> None:
        given = [_named(one) for one in arguments.get("device_ids") or ()]
        if any(map(self._meaning.means, given)):
            real = [self._meaning.real_of(one, "DistributedDataParallel") for one in given]
            arguments["device_ids"] = None if self._meaning.real.type == "cpu" else real
        output = _named(arguments.get("output_device"))
        if self._meaning.means(output):
            real_output = self._meaning.real_of(output, "DistributedDataParallel")
            arguments["output_device"] = None if self._meaning.real.type == "cpu" else real_output


def _named(device: Any) -> Any:
    """Returns the name of a device that is given by its number: one of CUDA's."""
    return f"cuda:{device}" if isinstance(device, int) else device
