"""kornia's geometry moves pixels by products of small matrices; its losses and filters subtract close values."""

EXACT_PACKAGES = (
    "kornia.augmentation",
    "kornia.color",
    "kornia.enhance",
    "kornia.filters",
    "kornia.geometry",
    "kornia.losses",
    "kornia.metrics",
)
