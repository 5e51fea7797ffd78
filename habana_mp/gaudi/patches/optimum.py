"""The release of Gaudi's software and the name of the device, which optimum-habana asks for when it is imported."""

from __future__ import annotations

from typing import Any

from habana_mp.common.ledger import Assumption, holds
from habana_mp.patches.tools.exchanged_attributes import ExchangedAttributes
from habana_mp.patches.tools.when_imported import WhenImported

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

#: The first device: later ones make optimum-habana choose kernels of their own.
DEVICE = "gaudi"


class OptimumRelease(WhenImported):
    """Gives optimum-habana the release that it was validated for, which it would ask pip for, and a device's name.
    ``name``: the module that has the functions; since 1.19 `utils` is a package, and they are in its `misc`."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__()
        self._attributes = ExchangedAttributes()

    def do(self, module: Any) -> None:
        # Its releases for HMP ask for neither.
        if hasattr(module, "get_habana_frameworks_version") and holds(_RELEASE, lambda: _has_release(module)):
            release = module.CURRENTLY_VALIDATED_SYNAPSE_VERSION
            self._attributes.exchange(module, "get_habana_frameworks_version", lambda: release)
        if hasattr(module, "get_device_name") and holds(_DEVICE, lambda: callable(module.get_device_name)):
            self._attributes.exchange(module, "get_device_name", lambda: DEVICE)

    def undo(self, module: Any) -> None:
        self._attributes.put_back()


def _has_release(module: Any) -> bool:
    release = module.CURRENTLY_VALIDATED_SYNAPSE_VERSION
    return callable(module.get_habana_frameworks_version) and hasattr(release, "major") and hasattr(release, "minor")
