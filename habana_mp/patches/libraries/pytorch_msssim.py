"""pytorch_msssim computes variances as differences of close values."""

from __future__ import annotations

EXACT_PACKAGES = ("pytorch_msssim",)
