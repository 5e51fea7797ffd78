"""``habana_frameworks.torch``."""

from __future__ import annotations

from habana_mp.gaudi.placement import log_placement_if_asked

from . import core, hpu

__all__ = ["core", "hpu"]

log_placement_if_asked()
