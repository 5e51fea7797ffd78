"""``habana_frameworks.torch.utils.library_loader``."""

from __future__ import annotations

__all__ = ["is_habana_avaialble", "is_habana_available", "load_habana_module"]


def load_habana_module() -> None:
    """Does nothing: torch has the device already."""


def is_habana_available() -> bool:
    """True: ``"hpu"`` can be used."""
    return True


is_habana_avaialble = is_habana_available  # the spelling of some releases
