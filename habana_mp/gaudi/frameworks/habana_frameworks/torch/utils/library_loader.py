"""``habana_frameworks.torch.utils.library_loader``."""

from __future__ import annotations

__all__ = ["is_habana_avaialble", "is_habana_available", "load_habana_module"]


def load_habana_module() -> None:
    """Nothing is to be loaded: the device is torch's."""


def is_habana_available() -> bool:
    """True: ``"hpu"`` can be used."""
    return True


is_habana_avaialble = is_habana_available  # so spelt in some releases
