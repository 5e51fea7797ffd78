"""kornia's geometry moves pixels by products of small matrices; its losses and filters subtract close values."""

from __future__ import annotations

EXACT_PACKAGES = (
    "kornia.augmentation",
    "kornia.color",
    "kornia.enhance",
    "kornia.filters",
    "kornia.geometry",
    "kornia.losses",
    "kornia.metrics",
)
