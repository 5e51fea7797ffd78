"""The devices of this machine."""

from __future__ import annotations

import torch

#: Devices besides the CPU, as modules of torch.
ACCELERATORS = ("cuda", "xpu", "hpu", "mps")


def devices() -> list[str]:
    """Returns the types of device that are available, the CPU first."""
    return [name for name in ("cpu", *ACCELERATORS) if is_there(name)]


def is_there(device_type: str) -> bool:
    """True if this machine has such a device."""
    is_available = getattr(getattr(torch, device_type, None), "is_available", None)
    return device_type == "cpu" or (is_available is not None and bool(is_available()))
