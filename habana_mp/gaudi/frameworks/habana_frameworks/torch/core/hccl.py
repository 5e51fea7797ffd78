"""``habana_frameworks.torch.core.hccl``: its import makes ``"hccl"`` a backend of torch.distributed."""

from __future__ import annotations

from ..distributed.hccl import initialize_distributed_hpu

__all__ = ["initialize_distributed_hpu"]
