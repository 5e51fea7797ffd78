"""``habana_frameworks.torch.utils.debug``."""

from __future__ import annotations

__all__ = ["_is_enabled_synapse_layout_handling"]


def _is_enabled_synapse_layout_handling() -> bool:
    """Returns True, so that the script does not permute weights: torch's kernels use them as they are."""
    return True
