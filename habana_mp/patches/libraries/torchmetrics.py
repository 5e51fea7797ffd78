"""torchmetrics sums values that are compared to the last digit."""

from __future__ import annotations

from habana_mp.patches.tools.in_float32 import given_exact_method
from habana_mp.patches.tools.named_functions import Exchange, assumption_of_library

EXACT_PACKAGES = ("torchmetrics",)

_FUNCTIONS = assumption_of_library("torchmetrics", "update and compute metrics, and are exact")

EXCHANGES = (
    # They take an exact method, and return the method that replaces it on an object.
    Exchange(
        given_exact_method,
        {"torchmetrics.metric": ("Metric._wrap_update", "Metric._wrap_compute")},
        _FUNCTIONS,
        positional=2,
    ),
)
