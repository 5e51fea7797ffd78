"""``habana_frameworks.torch.utils.debug``."""

from __future__ import annotations

from typing import Any

__all__ = [
    "_enable_fuse_conv_bn_optimization",
    "_enable_weight_permute_pass",
    "_is_enabled_synapse_layout_handling",
    "_is_enabled_weight_permute_pass",
]


def _enable_weight_permute_pass(*_: Any) -> None:
    """Does nothing, since torch's kernels use weights as they are."""


def _is_enabled_weight_permute_pass() -> bool:
    """Returns True, so that the script does not permute weights."""
    return True


def _enable_fuse_conv_bn_optimization(*_: Any) -> None:
    """Does nothing. Convolutions and batch norms run one after the other, with the same results."""


def _is_enabled_synapse_layout_handling() -> bool:
    """Returns True, so that the script does not permute weights: torch's kernels use them as they are."""
    return True
