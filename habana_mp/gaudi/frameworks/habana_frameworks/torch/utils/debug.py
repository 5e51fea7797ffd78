"""``habana_frameworks.torch.utils.debug``."""

from __future__ import annotations

__all__ = ["_is_enabled_synapse_layout_handling"]


def _is_enabled_synapse_layout_handling() -> bool:
    """True: weights are not to be permuted by the script, since torch's kernels want them as they are."""
    return True
