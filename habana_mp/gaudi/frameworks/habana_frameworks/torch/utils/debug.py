"""``habana_frameworks.torch.utils.debug``."""

from __future__ import annotations

from typing import Any

from ..core import enable_weight_permute_pass as _enable_weight_permute_pass
from ..core import is_enabled_weight_permute_pass as _is_enabled_weight_permute_pass

__all__ = [
    "_enable_fuse_conv_bn_optimization",
    "_enable_weight_permute_pass",
    "_is_enabled_synapse_layout_handling",
    "_is_enabled_weight_permute_pass",
]


def _enable_fuse_conv_bn_optimization(*_: Any) -> None:
    """Accepts the call and changes nothing. Convolutions and batch norms run one after the other."""


def _is_enabled_synapse_layout_handling() -> bool:
    """Returns True, so that the script does not permute weights: torch's kernels use them as they are."""
    return True
