"""``habana_frameworks.torch.utils.distributed_utils``."""

from __future__ import annotations

from ..distributed.hccl import initialize_distributed_hpu

__all__ = ["initialize_distributed_hpu"]
