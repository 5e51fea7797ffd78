"""Functions that run in float32: they have no other kernel (rule 8), compute to a tolerance, or compute values that are
compared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from habana_mp.patches.tools import precision_of_values as precision
from habana_mp.patches.tools.casts_off import casts_off
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_functions, originals
from habana_mp.patches.tools.precision_of_values import is_packed_sequence
from habana_mp.patches.tools.pytree import tree_map
from habana_mp.patches.tools.region_dtypes import lists_speak

#: Functions with a kernel for float32 only.
FLOAT32_ONLY: Table = {
    "torch.ao.nn.quantized.dynamic.modules.linear": ("Linear.forward",),
    "torch.ao.nn.quantized.dynamic.modules.rnn": ("*.forward",),
    "torch.ao.nn.intrinsic.quantized.dynamic.modules.linear_relu": ("LinearReLU.forward",),
}

#: Functions of other libraries that compute to a tolerance, or sum values that are compared. They run completely in
#: float32, including user code and networks in them. (For some of these libraries, lists lower none of
#: their code: ``libraries.py``.)
EXACT: Table = {
    # Matrices that are factorised, and values used with them: they are made in float32 from a network's features.
    "gpytorch.kernels.kernel": ("Kernel.__call__",),
    "gpytorch.lazy.lazy_evaluated_kernel_tensor": ("LazyEvaluatedKernelTensor._diagonal",),
    "gpytorch.means.mean": ("Mean.__call__",),
    "gpytorch.distributions.multivariate_normal": ("MultivariateNormal.__init__",),
    # Line searches, which stop when two values are equal.
    "botorch.fit": ("fit_gpytorch_mll",),
    "botorch.optim.optimize": (
        *("optimize_acqf", "optimize_acqf_cyclic", "optimize_acqf_discrete", "optimize_acqf_discrete_local_search"),
        *("optimize_acqf_list", "optimize_acqf_mixed"),
    ),
    "botorch.optim.optimize_mixed": ("optimize_acqf_mixed_alternating",),
    # An adaptive solver shortens its steps until an error in the last digits does not show.
    "zuko.utils": ("odeint", "AdaptiveCheckpointAdjoint.backward"),
    # Gradients of single examples, whose norm determines the privacy.
    "opacus.grad_sample.grad_sample_module": ("*.capture_backprops_hook",),
    "opacus.grad_sample.grad_sample_module_fast_gradient_clipping": ("*.capture_backprops_hook",),
}

#: Functions that pass exact code the inputs of a network's layers.
GIVES_FLOAT32: Table = {
    "opacus.grad_sample.grad_sample_module": ("*.rearrange_grad_samples",),
}

#: Functions that take an exact method, and return the method that replaces it on an object.
TAKES_EXACT: Table = {"torchmetrics.metric": ("Metric._wrap_update", "Metric._wrap_compute")}


def in_float32(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function with a kernel for float32 only."""
    if lists_speak():
        arguments, keywords = tree_map(precision.in_float32, (arguments, keywords), is_leaf=is_packed_sequence)
    return originals[name](*arguments, **keywords)


def exactly(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that runs completely in float32."""
    return _exactly(originals[name], arguments, keywords)


def _exactly(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not lists_speak():
        return function(*arguments, **keywords)
    arguments, keywords = tree_map(precision.in_float32, (arguments, keywords), is_leaf=is_packed_sequence)
    with casts_off():
        return function(*arguments, **keywords)


def giving_float32(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that passes exact code values which may have been lowered."""
    given = originals[name](*arguments, **keywords)
    return tree_map(precision.in_float32, given)


def given_exact_method(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that takes an object and its exact method."""
    owner, method = (*arguments, *keywords.values())

    @functools.wraps(method)
    def exact(*given: Any, **named: Any) -> Any:
        return _exactly(method, given, named)

    return originals[name](owner, exact)


_QUANTIZED = assumption_of_functions(
    "torch.functions-in-float32",
    "torch has the forwards of dynamically quantized modules",
    "a lowered input is refused by torch",
)

EXCHANGES = (
    Exchange(in_float32, FLOAT32_ONLY, of_torch=_QUANTIZED),
    Exchange(exactly, EXACT),
    Exchange(giving_float32, GIVES_FLOAT32),
    Exchange(given_exact_method, TAKES_EXACT, positional=2),
)
