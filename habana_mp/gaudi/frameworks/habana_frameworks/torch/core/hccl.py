"""``habana_frameworks.torch.core.hccl``: importing it lets torch.distributed know the backend ``"hccl"``."""

from __future__ import annotations

from ..distributed.hccl import initialize_distributed_hpu

__all__ = ["initialize_distributed_hpu"]
