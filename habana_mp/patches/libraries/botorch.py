"""botorch optimises with line searches, and compares what it sums."""

from habana_mp.patches.tools.in_float32 import exactly
from habana_mp.patches.tools.named_functions import Exchange, assumption_of_library

EXACT_PACKAGES = ("botorch",)

_FUNCTIONS = assumption_of_library("botorch", "optimise, and are exact")

EXCHANGES = (
    Exchange(
        exactly,
        {
            # Line searches, which stop when two values are equal.
            "botorch.fit": ("fit_gpytorch_mll",),
            "botorch.optim.optimize": ("*",),
            "botorch.optim.optimize_mixed": ("optimize_acqf_mixed_alternating",),
        },
        _FUNCTIONS,
    ),
)
