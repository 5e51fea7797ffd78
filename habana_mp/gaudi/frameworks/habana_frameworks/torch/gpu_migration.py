"""``habana_frameworks.torch.gpu_migration``: its import makes CUDA's names lead to the stand-in's device."""

from __future__ import annotations

from habana_mp.gaudi.switch import migrate_from_cuda

migrate_from_cuda()
