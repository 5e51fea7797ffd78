"""kornia's geometry moves pixels by products of small matrices; its losses and filters subtract close values."""

_PARTS = ("augmentation", "color", "enhance", "filters", "geometry", "losses", "metrics")
EXACT_PACKAGES = tuple(f"kornia.{name}" for name in _PARTS)
