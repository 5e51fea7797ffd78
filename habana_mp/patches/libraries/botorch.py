"""botorch optimises with line searches, which stop when two values are equal."""

EXACT_PACKAGES = ("botorch",)

EXACT_FUNCTIONS = {
    "botorch.fit": ("fit_gpytorch_mll",),
    "botorch.optim.optimize": ("*",),
    "botorch.optim.optimize_mixed": ("optimize_acqf_mixed_alternating",),
}
