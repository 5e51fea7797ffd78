"""Functions of torch that are written in Python and take the device, or its name, in an argument."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import serialization
from torch.utils.data import DataLoader

from habana_mp.common.ledger import Assumption, holds
from habana_mp.gaudi.devices import Devices
from habana_mp.gaudi.patches.changes import Changes

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


def change_files(hpu: Devices, changes: Changes) -> None:
    """``map_location="hpu"``, and files that were saved on an HPU."""

    def location(where: Any) -> Any:
        """Returns the real location in the form that torch expects: a string for a string."""
        real = hpu.real_of(where, "torch.load")
        return str(real) if isinstance(where, str) and real is not where else real

    def load(arguments: dict[str, Any]) -> None:
        where = arguments.get("map_location")
        if isinstance(where, dict):
            where = {key: location(value) for key, value in where.items()}
        arguments["map_location"] = location(where)

    def restore(storage: Any, location: str) -> Any:
        if not hpu.means(location):
            return None
        real = hpu.real_of(location, "a tensor in a file")
        return storage.to(device=real) if storage.device != real else storage

    changes.edit(torch.load, load)
    if holds(_FILES, lambda: all(len(one) == 3 for one in serialization._package_registry)):
        before = list(serialization._package_registry)
        serialization.register_package(_PRIORITY, lambda storage: None, restore)
        registered = next(one for one in serialization._package_registry if one not in before)
        changes.callback(serialization._package_registry.remove, registered)


def change_fork_rng(hpu: Devices, changes: Changes) -> None:
    """``torch.random.fork_rng(device_type="hpu")``."""

    def fork(arguments: dict[str, Any]) -> None:
        device_type = arguments.get("device_type") or "cuda"  # torch's default
        if isinstance(device_type, str) and hpu.means(device_type):
            real = hpu.real_of(device_type, "torch.random.fork_rng")
            if real.type == "cpu":
                arguments["devices"] = []  # the state of the CPU is always saved
            arguments["device_type"] = "cuda" if real.type == "cpu" else real.type

    fork_rng: Any = inspect.unwrap(torch.random.fork_rng)
    if holds(_RANDOM, lambda: {"devices", "device_type"} <= inspect.signature(fork_rng).parameters.keys()):
        changes.edit(fork_rng, fork)


def change_loaders(hpu: Devices, changes: Changes) -> None:
    """``DataLoader(pin_memory_device="hpu")``."""

    def pin(arguments: dict[str, Any]) -> None:
        device = arguments.get("pin_memory_device")
        if device and hpu.means(device):
            hpu.log_mapping("pin_memory_device of a DataLoader", device)
            # torch pins memory for the device that is available, and needs none for the CPU.
            arguments["pin_memory_device"] = ""
            if hpu.real.type == "cpu":
                arguments["pin_memory"] = False

    changes.edit(DataLoader.__init__, pin)


def change_labels(hpu: Devices, changes: Changes) -> None:
    """Makes losses take labels in int32, as Gaudi's do. Torch's kernels refuse them."""

    def widen(arguments: dict[str, Any]) -> None:
        target = arguments.get("target")
        if isinstance(target, torch.Tensor) and target.dtype is torch.int32:
            arguments["target"] = target.long()

    for loss in (F.cross_entropy, F.nll_loss):
        changes.edit(loss, widen)


def change_process_groups(hpu: Devices, changes: Changes) -> None:
    """The backend ``"hccl"``: gloo or nccl, depending on the real device."""

    def backend(arguments: dict[str, Any]) -> None:
        if "backend" in arguments:
            arguments["backend"] = hpu.real_backend(arguments["backend"])
        if hpu.means(arguments.get("device_id")):
            real = hpu.real_of(arguments["device_id"], "torch.distributed")
            arguments["device_id"] = None if real.type == "cpu" else torch.device(real.type, real.index or 0)

    def change(module: Any) -> None:
        for function in (module.init_process_group, module.new_group):
            changes.edit(function, backend)

    changes.when_imported("torch.distributed.distributed_c10d", change)


def change_data_parallel(hpu: Devices, changes: Changes) -> None:
    """``device_ids`` and ``output_device`` of DistributedDataParallel: both are None for a CPU."""

    def real(device: Any) -> Any:
        named = f"cuda:{device}" if isinstance(device, int) else device  # CUDA's devices have numbers
        if not hpu.means(named):
            return device
        found = hpu.real_of(named, "DistributedDataParallel")
        return None if found.type == "cpu" else found

    def devices(arguments: dict[str, Any]) -> None:
        given = arguments.get("device_ids")
        if given:
            arguments["device_ids"] = [one for one in map(real, given) if one is not None] or None
        arguments["output_device"] = real(arguments.get("output_device"))

    changes.when_imported(
        "torch.nn.parallel.distributed", lambda module: changes.edit(module.DistributedDataParallel.__init__, devices)
    )
