"""Functions that run without casts (rule 11): they compute weights, gradients, statistics or learning rates, or prepare
data.

They run outside of optimizer steps and constructors, and write persistent values: averaged, fused and pruned weights,
the vectors of spectral norm, clipped gradients, the statistics of an observer, a loaded model, adapters.
"""

from __future__ import annotations

from typing import Any

from habana_mp.patches.tools.casts_off import without_casts
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_functions
from habana_mp.patches.torch.begun_backwards import notify_scaled

#: Functions that create state.
STATE: Table = {
    "torch.nn.modules.module": ("Module.apply",),
    "torch.optim.swa_utils": ("AveragedModel.update_parameters",),
    "torch.optim.lr_scheduler": ("*.step", "*._initial_step"),
    "torch.nn.utils.fusion": ("fuse_conv_bn_weights", "fuse_linear_bn_weights"),
    "torch.nn.utils.parametrize": (
        "register_parametrization",
        "remove_parametrizations",
        "transfer_parametrizations_and_params",
        "ParametrizationList.forward",
        "ParametrizationList.right_inverse",
    ),
    "torch.nn.utils.parametrizations": ("_SpectralNorm.forward",),
    "torch.nn.utils.spectral_norm": ("SpectralNorm.apply", "SpectralNorm.compute_weight"),
    "torch.nn.utils.weight_norm": ("WeightNorm.apply", "WeightNorm.compute_weight", "WeightNorm.remove"),
    "torch.nn.utils.clip_grad": ("clip_grad_norm_", "_clip_grads_with_norm_", "_get_total_norm"),
    "torch.nn.utils.prune": ("BasePruningMethod.apply", "BasePruningMethod.apply_mask", "BasePruningMethod.remove"),
    "torch.ao.pruning.sparsifier.base_sparsifier": ("BaseSparsifier.step",),
    "torch.ao.pruning._experimental.data_sparsifier.base_data_sparsifier": ("BaseDataSparsifier.step",),
    "torch.ao.quantization._equalize": ("equalize",),
    "torch.signal.windows.windows": ("*",),
    "torch.ao.quantization.observer": ("*.forward", "*.calculate_qparams"),
}


def without_casts_of_loss(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces the method of a gradient scaler that scales a loss."""
    if arguments[0].is_enabled():
        notify_scaled(arguments[1:])
    return without_casts(original, arguments, keywords)


def without_casts_where_enabled(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a gradient scaler's step. A disabled one may get a closure, which runs a model's forward."""
    if arguments[0].is_enabled():
        return without_casts(original, arguments, keywords)
    return original(*arguments, **keywords)


_STATE = assumption_of_functions(
    "torch.functions-that-make-state",
    "torch has the functions that make weights, gradients, statistics and learning rates of other ones",
    "what they compute goes by the lists, and what they keep may be rounded",
)

EXCHANGES = (
    Exchange(without_casts, STATE, _STATE),
    Exchange(without_casts_of_loss, {"torch.amp.grad_scaler": ("GradScaler.scale",)}, _STATE, positional=2),
    Exchange(without_casts_where_enabled, {"torch.amp.grad_scaler": ("GradScaler.step",)}, _STATE, positional=1),
)
