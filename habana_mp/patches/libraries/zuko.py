"""zuko solves differential equations."""

from habana_mp.patches.tools.in_float32 import exactly
from habana_mp.patches.tools.named_functions import Exchange, assumption_of_library

_FUNCTIONS = assumption_of_library("zuko", "solve differential equations, and are exact")

EXCHANGES = (
    Exchange(
        exactly,
        {
            # An adaptive solver shortens its steps until an error in the last digits does not show.
            "zuko.utils": ("odeint", "AdaptiveCheckpointAdjoint.backward"),
        },
        _FUNCTIONS,
    ),
)
