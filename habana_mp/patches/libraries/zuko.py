"""zuko solves differential equations: an adaptive solver shortens its steps until an error does not show."""

from habana_mp.patches.tools.in_float32 import exactly
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_library

_FUNCTIONS = assumption_of_library("zuko", "solve differential equations, and are exact")

_SOLVER: Table = {"zuko.utils": ("odeint", "AdaptiveCheckpointAdjoint.backward")}
EXCHANGES = (Exchange(exactly, _SOLVER, _FUNCTIONS),)
