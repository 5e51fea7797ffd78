"""Switches the stand-in on in this process and in the processes that it starts."""

from __future__ import annotations

import importlib
import os
import sys

from habana_mp import _core
from habana_mp.common.bound import bind_torch
from habana_mp.gaudi.devices import Devices, chosen, log_to_standard_error
from habana_mp.gaudi.finder import Finder, refuse_to_shadow
from habana_mp.gaudi.patches import arguments, libraries
from habana_mp.gaudi.patches.autocast import change_autocast
from habana_mp.gaudi.patches.changes import Changes
from habana_mp.gaudi.patches.compile import change_backends
from habana_mp.gaudi.patches.cuda import change_cuda
from habana_mp.gaudi.patches.devices import change_devices
from habana_mp.patches.installation import installation
from habana_mp.patches.tools.spawned_processes import send_to_children, stop_sending_to_children
from habana_mp.policy.options import level_of_environment
from habana_mp.scopes import regions

#: The environment variable that names the device, in this process and in its children.
VARIABLE = "HABANA_MP_GAUDI"
#: Gaudi's environment variable with the same effect as the import of ``gpu_migration``.
_MIGRATION = "PT_HPU_GPU_MIGRATION"
#: The key of the stand-in for children of multiprocessing.
_ENTRY = "habana_mp.gaudi"


#: What the stand-in changes, in this order.
_CHANGES = (
    change_devices,
    change_autocast,
    arguments.change_files,
    arguments.change_fork_rng,
    arguments.change_loaders,
    arguments.change_labels,
    arguments.change_process_groups,
    arguments.change_data_parallel,
    change_backends,
    libraries.change_lightning,
    libraries.change_optimum,
    libraries.change_torch_hpu,
    libraries.change_find_spec,
)


class _State:
    """The state of the stand-in, one for the process."""

    devices: Devices | None = None
    tells_children = False
    changes = Changes()


_state = _State()


def devices() -> Devices:
    """Returns the device that ``"hpu"`` means in this process.

    Raises:
        RuntimeError: the stand-in is off.
    """
    if _state.devices is None:
        raise RuntimeError("habana_mp's stand-in for Gaudi is off; `import habana_mp.gaudi` switches it on")
    return _state.devices


def switch_on(device: str | None = None) -> None:
    """Makes ``habana_frameworks`` importable, and makes ``"hpu"`` mean a device, from now on in this process.

    Args:
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...; None: the device that was chosen before, else the best one.

    Raises:
        ValueError: ``device`` is not a device, or is not available here.
        ImportError: the real habana_frameworks is installed.
    """
    if _state.devices is not None:
        if device is not None:
            _state.devices.real = chosen(device)
            _tell_regions(_state.devices)
            if _state.tells_children:
                os.environ[VARIABLE] = str(_state.devices.real)
        return
    level_of_environment()  # raises now if the value is invalid
    real = chosen(device)
    finder = Finder()
    refuse_to_shadow(finder)
    log_to_standard_error()
    bind_torch()  # before torch's functions are replaced
    here = _state.devices = Devices(real)
    _state.changes.callback(_forget)
    sys.meta_path = [finder, *sys.meta_path]
    _state.changes.callback(_remove, finder)
    try:
        for change in _CHANGES:
            change(here, _state.changes)
        _tell_regions(here)
        if os.environ.get(_MIGRATION, "0") not in ("", "0"):
            migrate_from_cuda()
    except BaseException:
        switch_off()
        raise


def migrate_from_cuda() -> None:
    """Makes ``"cuda"``, ``.cuda()`` and ``"nccl"`` mean the device of ``"hpu"``. If that device is CUDA, nothing
    changes."""
    here = devices()
    if here.real.type == "cuda" or "cuda" in here.names:
        return
    here.names.add("cuda")
    here.backends.add("nccl")
    change_cuda(here, importlib.import_module("habana_frameworks.torch.hpu"), _state.changes)
    _tell_regions(here)


def switch_off() -> None:
    """Restores torch and Python. Modules of the stand-in that were imported stay imported."""
    _state.changes.close()


def _remove(finder: Finder) -> None:
    sys.meta_path = [one for one in sys.meta_path if one is not finder]


def _forget() -> None:
    _state.devices = None
    regions.stand_ins.clear()
    _core.set_devices_of_regions(None)
    installation.numbers.clear()


def _tell_regions(devices: Devices) -> None:
    regions.stand_ins.update(dict.fromkeys(devices.names, devices.real.type))
    _core.set_devices_of_regions((devices.real.type, *sorted(devices.names)))
    installation.numbers.clear()


def prepare_children(device: str | None = None) -> None:
    """Makes the processes that this process starts switch the stand-in on. Processes of multiprocessing do so before
    they import the script. Other processes do so when they import habana_mp, because of the environment variable
    HABANA_MP_GAUDI."""
    if not _state.tells_children:
        _state.tells_children = True
        _state.changes.callback(_stop_telling_children, os.environ.get(VARIABLE))
    os.environ[VARIABLE] = str(devices().real if device is None else chosen(device))
    send_to_children(_ENTRY, lambda: (switch_on, os.environ[VARIABLE]))


def _stop_telling_children(before: str | None) -> None:
    _state.tells_children = False
    stop_sending_to_children(_ENTRY)
    os.environ.pop(VARIABLE, None)
    if before is not None:
        os.environ[VARIABLE] = before
