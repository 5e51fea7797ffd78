"""monai's losses and metrics compute variances as differences of close values, as SSIM does."""

EXACT_PACKAGES = ("monai.losses", "monai.metrics")
