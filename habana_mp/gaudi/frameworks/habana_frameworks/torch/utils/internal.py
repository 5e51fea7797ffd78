"""``habana_frameworks.torch.utils.internal``."""

from __future__ import annotations

from ..core import is_lazy

__all__ = ["is_lazy"]
