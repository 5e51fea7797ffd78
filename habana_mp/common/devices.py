"""The devices of this machine."""

from __future__ import annotations

from collections.abc import Callable

import torch

#: Devices besides the CPU, as modules of torch.
ACCELERATORS = ("cuda", "xpu", "hpu", "mps")


def devices() -> list[str]:
    """Returns the types of device that are available, the CPU first."""
    found = ["cpu"]
    for name in ACCELERATORS:
        module = getattr(torch, name, None)
        available: Callable[[], bool] | None = getattr(module, "is_available", None)
        if available is not None and available():
            found.append(name)
    return found
