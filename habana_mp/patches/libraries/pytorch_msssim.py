"""pytorch_msssim computes variances as differences of close values."""

EXACT_PACKAGES = ("pytorch_msssim",)
