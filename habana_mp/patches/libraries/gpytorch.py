"""gpytorch and linear_operator factorise matrices that are singular in bfloat16."""

EXACT_PACKAGES = ("gpytorch", "linear_operator")

# Matrices that are factorised, and values used with them, are made in float32 from a network's features.
EXACT_FUNCTIONS = {
    "gpytorch.kernels.kernel": ("Kernel.__call__",),
    "gpytorch.lazy.lazy_evaluated_kernel_tensor": ("LazyEvaluatedKernelTensor._diagonal",),
    "gpytorch.means.mean": ("Mean.__call__",),
    "gpytorch.distributions.multivariate_normal": ("MultivariateNormal.__init__",),
}
