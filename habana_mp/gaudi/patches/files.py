"""``map_location="hpu"``, files that were saved on an HPU, and ``pin_memory_device="hpu"``."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import serialization
from torch.utils.data import DataLoader

from habana_mp.common.ledger import Assumption, holds
from habana_mp.gaudi.patches.names import Meaning, with_arguments
from habana_mp.patches.tools.code_exchange import Replacement
from habana_mp.patches.tools.patch import Patch, Settings

_FILES = Assumption(
    "torch.files-of-devices",
    assumed="torch keeps what restores a saved tensor to its device in a sorted list, which register_package adds to",
    check="the list is there, of triples",
    otherwise="a file that was saved on an HPU loads with map_location= only",
)

_RANDOM = Assumption(
    "torch.fork-rng",
    assumed="torch.random.fork_rng takes `devices` and `device_type`",
    check="its parameters",
    otherwise='torch refuses device_type="hpu" there',
)

#: Before torch's own entries, one of which is for HPUs.
_PRIORITY = 5


class HpuFiles(Patch):
    """``torch.load`` and ``torch.random.fork_rng``."""

    def __init__(self, meaning: Meaning) -> None:
        self._meaning = meaning
        self._replacements: list[Replacement] = []
        self._registered: Any = None

    def install(self, settings: Settings) -> None:
        if self._replacements:
            return
        load: Any = torch.load
        self._replacements = [Replacement(load, with_arguments(load, self._map))]
        fork_rng: Any = inspect.unwrap(torch.random.fork_rng)
        if holds(_RANDOM, lambda: {"devices", "device_type"} <= inspect.signature(fork_rng).parameters.keys()):
            self._replacements.append(Replacement(fork_rng, with_arguments(fork_rng, self._fork)))
        for replacement in self._replacements:
            replacement.install()
        if holds(_FILES, lambda: all(len(one) == 3 for one in serialization._package_registry)):
            before = list(serialization._package_registry)
            serialization.register_package(_PRIORITY, lambda storage: None, self._restore)
            self._registered = next(one for one in serialization._package_registry if one not in before)

    def uninstall(self) -> None:
        while self._replacements:
            self._replacements.pop().uninstall()
        if self._registered is not None:
            serialization._package_registry.remove(self._registered)
            self._registered = None

    def _map(self, arguments: dict[str, Any]) -> None:
        where = arguments.get("map_location")
        if isinstance(where, dict):
            where = {key: self._location(value) for key, value in where.items()}
        arguments["map_location"] = self._location(where)

    def _location(self, where: Any) -> Any:
        """Returns the real location in the form that torch expects: a string for a string."""
        real = self._meaning.real_of(where, "torch.load")
        return str(real) if isinstance(where, str) and real is not where else real

    def _restore(self, storage: Any, location: str) -> Any:
        if not self._meaning.means(location):
            return None
        real = self._meaning.real_of(location, "a tensor in a file")
        return storage.to(device=real) if storage.device != real else storage

    def _fork(self, arguments: dict[str, Any]) -> None:
        device_type = arguments.get("device_type") or "cuda"  # torch's default
        if isinstance(device_type, str) and self._meaning.means(device_type):
            real = self._meaning.real_of(device_type, "torch.random.fork_rng")
            if real.type == "cpu":
                arguments["devices"] = []  # the state of the CPU is always saved
            arguments["device_type"] = "cuda" if real.type == "cpu" else real.type


class HpuLoaders(Patch):
    """``torch.utils.data.DataLoader``."""

    def __init__(self, meaning: Meaning) -> None:
        self._meaning = meaning
        self._replacement: Replacement | None = None

    def install(self, settings: Settings) -> None:
        if self._replacement is None:
            function: Any = DataLoader.__init__
            self._replacement = Replacement(function, with_arguments(function, self._map))
            self._replacement.install()

    def uninstall(self) -> None:
        if self._replacement is not None:
            self._replacement.uninstall()
            self._replacement = None

    def _map(self, arguments: dict[str, Any]) -> None:
        device = arguments.get("pin_memory_device")
        if device and self._meaning.means(device):
            self._meaning.tell("pin_memory_device of a DataLoader", device)
            # torch pins memory for the device that is available, and needs none for the CPU.
            arguments["pin_memory_device"] = ""
            if self._meaning.real.type == "cpu":
                arguments["pin_memory"] = False
