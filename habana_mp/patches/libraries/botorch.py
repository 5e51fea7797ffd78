"""botorch optimises with line searches, which stop when two values are equal."""

from habana_mp.patches.tools.in_float32 import exactly
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_library

EXACT_PACKAGES = ("botorch",)

_FUNCTIONS = assumption_of_library("botorch", "optimise, and are exact")

_SEARCHES: Table = {
    "botorch.fit": ("fit_gpytorch_mll",),
    "botorch.optim.optimize": ("*",),
    "botorch.optim.optimize_mixed": ("optimize_acqf_mixed_alternating",),
}
EXCHANGES = (Exchange(exactly, _SEARCHES, _FUNCTIONS),)
