"""qpth solves quadratic programs by factorizations, until residuals are small."""

EXACT_PACKAGES = ("qpth",)

EXACT_FUNCTIONS = {"qpth.solvers.pdipm.batch": ("forward", "pre_factor_kkt", "solve_kkt")}
