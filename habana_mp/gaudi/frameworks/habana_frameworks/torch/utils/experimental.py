"""``habana_frameworks.torch.utils.experimental``."""

from __future__ import annotations

import enum

__all__ = ["_get_device_type", "synDeviceType"]


class synDeviceType(enum.Enum):  # noqa: N801  the name that scripts use
    """Which Gaudi it is: none."""

    synDeviceGaudi = "synDeviceGaudi"  # noqa: N815 (its names are the package's)
    synDeviceGaudi2 = "synDeviceGaudi2"  # noqa: N815 (its names are the package's)
    synDeviceGaudi3 = "synDeviceGaudi3"  # noqa: N815 (its names are the package's)
    synDeviceInvalid = "synDeviceInvalid"  # noqa: N815 (its names are the package's)


def _get_device_type() -> synDeviceType:
    """``synDeviceInvalid``: scripts choose settings for one Gaudi or the other by it."""
    return synDeviceType.synDeviceInvalid
