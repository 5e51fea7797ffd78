"""Functions that run in float32: they have no other kernel (rule 8), or compute to a tolerance, or what is compared."""

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

#: What has a kernel for float32 only.
FLOAT32_ONLY: Table = {
    "torch.ao.nn.quantized.dynamic.modules.linear": ("Linear.forward",),
    "torch.ao.nn.quantized.dynamic.modules.rnn": ("*.forward",),
    "torch.ao.nn.intrinsic.quantized.dynamic.modules.linear_relu": ("LinearReLU.forward",),
}

#: What other libraries compute to a tolerance, or add up to be compared: all of it in float32, a user's own code and
#: networks that run in there too. (Of some nothing else that they compute is lowered either: ``libraries.py``.)
EXACT: Table = {
    # Matrices that are factorised, and what stands beside them: of a network's features they are made in float32.
    "gpytorch.kernels.kernel": ("Kernel.__call__",),
    "gpytorch.lazy.lazy_evaluated_kernel_tensor": ("LazyEvaluatedKernelTensor._diagonal",),
    "gpytorch.means.mean": ("Mean.__call__",),
    "gpytorch.distributions.multivariate_normal": ("MultivariateNormal.__init__",),
    # Line searches, which end where two values are alike.
    "botorch.fit": ("fit_gpytorch_mll",),
    "botorch.optim.optimize": (
        *("optimize_acqf", "optimize_acqf_cyclic", "optimize_acqf_discrete", "optimize_acqf_discrete_local_search"),
        *("optimize_acqf_list", "optimize_acqf_mixed"),
    ),
    "botorch.optim.optimize_mixed": ("optimize_acqf_mixed_alternating",),
    # An adaptive solver makes its steps so short that an error in the last digits does not show.
    "zuko.utils": ("odeint", "AdaptiveCheckpointAdjoint.backward"),
    # Gradients of single examples, whose norm is what privacy is reckoned by.
    "opacus.grad_sample.grad_sample_module": ("*.capture_backprops_hook",),
    "opacus.grad_sample.grad_sample_module_fast_gradient_clipping": ("*.capture_backprops_hook",),
}

#: What gives such code what a network's layers have seen.
GIVES_FLOAT32: Table = {
    "opacus.grad_sample.grad_sample_module": ("*.rearrange_grad_samples",),
}

#: What takes a method that is exact, and makes of it what an object has in its stead.
TAKES_EXACT: Table = {"torchmetrics.metric": ("Metric._wrap_update", "Metric._wrap_compute")}


def in_float32(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function with a kernel for float32 only is exchanged for."""
    if lists_speak():
        arguments, keywords = tree_map(precision.in_float32, (arguments, keywords), is_leaf=is_packed_sequence)
    return originals[name](*arguments, **keywords)


def exactly(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function is exchanged for that runs in float32 as a whole."""
    return _exactly(originals[name], arguments, keywords)


def _exactly(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not lists_speak():
        return function(*arguments, **keywords)
    arguments, keywords = tree_map(precision.in_float32, (arguments, keywords), is_leaf=is_packed_sequence)
    with casts_off():
        return function(*arguments, **keywords)


def giving_float32(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function is exchanged for that gives what may have been lowered to such code."""
    given = originals[name](*arguments, **keywords)
    return tree_map(precision.in_float32, given)


def given_exact_method(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function is exchanged for that takes a method, of an object and the method."""
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
