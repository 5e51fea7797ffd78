"""monai's losses and metrics compute variances as differences of close values, as SSIM does."""

from __future__ import annotations

EXACT_PACKAGES = ("monai.losses", "monai.metrics")
