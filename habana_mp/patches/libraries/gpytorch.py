"""gpytorch and linear_operator factorise matrices that are singular in bfloat16."""

from habana_mp.patches.tools.in_float32 import exactly
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_library

EXACT_PACKAGES = ("gpytorch", "linear_operator")

_FUNCTIONS = assumption_of_library("gpytorch", "make matrices and distributions, and are exact")

# Matrices that are factorised, and values used with them, are made in float32 from a network's features.
_MAKERS: Table = {
    "gpytorch.kernels.kernel": ("Kernel.__call__",),
    "gpytorch.lazy.lazy_evaluated_kernel_tensor": ("LazyEvaluatedKernelTensor._diagonal",),
    "gpytorch.means.mean": ("Mean.__call__",),
    "gpytorch.distributions.multivariate_normal": ("MultivariateNormal.__init__",),
}
EXCHANGES = (Exchange(exactly, _MAKERS, _FUNCTIONS),)
