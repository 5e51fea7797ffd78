"""``habana_frameworks.torch.gpu_migration``: importing it lets CUDA's names lead to the stand-in's device."""

from __future__ import annotations

from habana_mp.gaudi.switch import migrate_from_cuda

migrate_from_cuda()
