"""``habana_frameworks.torch.utils.debug``."""

from __future__ import annotations

__all__ = ["_is_enabled_synapse_layout_handling"]


def _is_enabled_synapse_layout_handling() -> bool:
    """True: the script must not permute weights, since torch's kernels use them unchanged."""
    return True
