"""``habana_frameworks.torch.utils.experimental``."""

from __future__ import annotations

import enum

__all__ = ["_get_device_type", "synDeviceType"]


class synDeviceType(enum.Enum):  # noqa: N801  the name that scripts use
    """The types of Gaudi devices."""

    synDeviceGaudi = "synDeviceGaudi"  # noqa: N815 (its names are the package's)
    synDeviceGaudi2 = "synDeviceGaudi2"  # noqa: N815 (its names are the package's)
    synDeviceGaudi3 = "synDeviceGaudi3"  # noqa: N815 (its names are the package's)
    synDeviceInvalid = "synDeviceInvalid"  # noqa: N815 (its names are the package's)


def _get_device_type() -> synDeviceType:
    """Returns ``synDeviceInvalid``: this is no Gaudi. Scripts choose settings for a type of Gaudi by it."""
    return synDeviceType.synDeviceInvalid
