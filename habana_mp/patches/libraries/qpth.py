"""qpth solves quadratic programs by factorizations, until residuals are small."""

from habana_mp.patches.tools.in_float32 import exactly
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_library

EXACT_PACKAGES = ("qpth",)

_FUNCTIONS = assumption_of_library("qpth", "solve programs, and are exact")

_SOLVER: Table = {"qpth.solvers.pdipm.batch": ("forward", "pre_factor_kkt", "solve_kkt")}
EXCHANGES = (Exchange(exactly, _SOLVER, _FUNCTIONS),)
