"""What libraries find out about the stand-in: whether it is there, and which release and device it is."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import warnings
from typing import Any

import torch

from habana_mp.common.ledger import Assumption, holds
from habana_mp.gaudi.callers import a_library_asks, is_script
from habana_mp.gaudi.devices import Devices
from habana_mp.gaudi.finder import ROOTS
from habana_mp.gaudi.patches.changes import Changes

_LAZY_NAMES = Assumption(
    "torch.lazy-names",
    assumed="torch is a module with a __getattr__ of its own, and has no `hpu`",
    check="it is looked for",
    otherwise="there is no torch.hpu; `import habana_frameworks.torch.hpu` works",
)

_TRAINER = Assumption(
    "lightning.trainer",
    assumed="Lightning's Trainer takes `accelerator`, by name, in a constructor of Python's",
    check="the constructor has code",
    otherwise='Lightning refuses accelerator="hpu"',
)

_SYNAPSE = Assumption(
    "lightning-habana.version",
    assumed="lightning_habana.utils.resources.get_hpu_synapse_version asks the program hl-smi for the release",
    check="it can be called",
    otherwise="lightning_habana takes the release for 0.0.0, and refuses its precision plugin",
)

_RELEASE = Assumption(
    "optimum-habana.version",
    assumed="optimum.habana.utils.get_habana_frameworks_version asks pip for the release, and the module has the "
    "release that it was validated for as CURRENTLY_VALIDATED_SYNAPSE_VERSION",
    check="the first can be called, and the second has `major` and `minor`",
    otherwise="the import of optimum.habana may raise InvalidVersion, since no package of Gaudi is installed",
)

_DEVICE = Assumption(
    "optimum-habana.device",
    assumed='optimum.habana.utils.get_device_name returns "gaudi", or another name for later devices',
    check="it can be called",
    otherwise="the import of optimum.habana may raise ValueError, since there is no device of Gaudi",
)

#: The release whose names the stand-in has.
RELEASE = "1.23.0"

#: The first device: later ones make optimum-habana choose kernels of their own.
DEVICE = "gaudi"

#: Lightning's names of devices.
_NAMES = {"cuda": "gpu"}


def change_torch_hpu(hpu: Devices, changes: Changes) -> None:
    """``torch.hpu`` for the script's own code only. Libraries would take it as a sign of an HPU."""
    if not holds(_LAZY_NAMES, lambda: callable(vars(torch)["__getattr__"]) and "hpu" not in vars(torch)):
        return
    torchs: Any = vars(torch)["__getattr__"]

    def find(name: str) -> Any:
        frame = inspect.currentframe()
        if name == "hpu" and frame is not None and is_script(frame.f_back):
            return importlib.import_module("habana_frameworks.torch.hpu")
        with warnings.catch_warnings(record=True) as caught:
            found = torchs(name)
        for one in caught:  # attributed to the caller, as torch does
            warnings.warn(one.message, one.category, stacklevel=2)
        return found

    changes.exchange(torch, "__getattr__", find)


def change_find_spec(hpu: Devices, changes: Changes) -> None:
    """Hides the stand-in's packages from libraries that call ``importlib.util.find_spec``, which finds imported modules
    without a finder."""

    def find(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        name = arguments[0] if arguments else keywords.get("name")
        is_ours = isinstance(name, str) and name.partition(".")[0] in ROOTS
        return None if is_ours and a_library_asks() else original(*arguments, **keywords)

    changes.replace(importlib.util.find_spec, find)


def change_lightning(hpu: Devices, changes: Changes) -> None:
    """``Trainer(accelerator="hpu")`` of Lightning, whose later releases support HPUs by ``lightning_habana`` only, and
    the release that ``lightning_habana`` would start Gaudi's program hl-smi for."""

    def change_trainer(module: Any) -> None:
        def begin(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            given = keywords.get("accelerator")
            if isinstance(given, str) and hpu.means(given) and not _supports_hpus(module.__name__):
                real = hpu.real_of(given, "Lightning's accelerator").type
                keywords = {**keywords, "accelerator": _NAMES.get(real, real)}
            return original(*arguments, **keywords)

        if holds(_TRAINER, lambda: hasattr(module.Trainer.__init__, "__code__"), module.__name__):
            changes.replace(module.Trainer.__init__, begin)

    def change_resources(module: Any) -> None:
        if holds(_SYNAPSE, lambda: callable(module.get_hpu_synapse_version), module.__name__):
            changes.exchange(module, "get_hpu_synapse_version", lambda: RELEASE)

    for name in ("pytorch_lightning.trainer.trainer", "lightning.pytorch.trainer.trainer"):
        changes.when_imported(name, change_trainer)
    changes.when_imported("lightning_habana.utils.resources", change_resources)


def _supports_hpus(trainer: str) -> bool:
    """True if Lightning has an accelerator for HPUs, of its own (until 2.0) or of the package beside it."""
    own = f"{trainer.removesuffix('.trainer.trainer')}.accelerators.hpu"
    found = (importlib.util.find_spec(name) for name in (own, "lightning_habana"))
    # Later releases lead the first name to a module that only warns.
    return any(spec is not None and spec.name in (own, "lightning_habana") for spec in found)


def change_optimum(hpu: Devices, changes: Changes) -> None:
    """Gives optimum-habana the release that it was validated for, which it would ask pip for, and a device's name."""

    def change(module: Any) -> None:
        # Its releases for HMP ask for neither.
        if hasattr(module, "get_habana_frameworks_version") and holds(_RELEASE, lambda: _has_release(module)):
            release = module.CURRENTLY_VALIDATED_SYNAPSE_VERSION
            changes.exchange(module, "get_habana_frameworks_version", lambda: release)
        if hasattr(module, "get_device_name") and holds(_DEVICE, lambda: callable(module.get_device_name)):
            changes.exchange(module, "get_device_name", lambda: DEVICE)

    # Since 1.19 `utils` is a package, and the functions are in its `misc`.
    for name in ("optimum.habana.utils", "optimum.habana.utils.misc"):
        changes.when_imported(name, change)


def _has_release(module: Any) -> bool:
    release = module.CURRENTLY_VALIDATED_SYNAPSE_VERSION
    return callable(module.get_habana_frameworks_version) and hasattr(release, "major") and hasattr(release, "minor")
