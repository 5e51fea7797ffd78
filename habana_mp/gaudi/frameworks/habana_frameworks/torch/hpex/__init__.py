"""``habana_frameworks.torch.hpex``."""

from __future__ import annotations

from habana_mp import hmp

__all__ = ["hmp"]
