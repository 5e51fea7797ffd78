"""Functions of torch's modules that take float32 only, check dtypes or look for fused kernels first, and one that swaps
tensors."""

from __future__ import annotations

from typing import Any

import torch

from habana_mp import _core
from habana_mp.patches.tools.casts_off import casts_off
from habana_mp.patches.tools.in_float32 import CASTABLE, in_float32, in_precision_of
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_functions
from habana_mp.patches.tools.region_dtypes import lists_apply


def unfused(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that the encoder layers call before they use a fused kernel instead of their operations. The
    kernel takes float32 as it is given, and refuses mixed dtypes."""
    return not lists_apply() and original(*arguments, **keywords)


def fused_if_nested(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a module's forward that takes nested tensors only by its fused kernel.

    The kernel takes one precision, and these tensors may have been lowered before.
    """
    if not any(map(_is_nested, (*arguments, *keywords.values()))) or not lists_apply():
        return original(*arguments, **keywords)
    dtype = next(arguments[0].parameters()).dtype
    # Each tensor is cast once: the kernel computes the attention of one tensor to itself.
    cast = {id(one): in_precision_of(dtype, one) for one in (*arguments, *keywords.values()) if _is_nested(one)}
    given = [cast.get(id(one), one) for one in arguments]
    with casts_off():
        return original(*given, **{key: cast.get(id(one), one) for key, one in keywords.items()})


def _is_nested(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_nested


def compared_as_cast(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a module's method that refuses an input whose dtype differs from that of its weights."""
    module, tensor, *others = arguments
    dtype = module._flat_weights[0].dtype
    if tensor.dtype is not dtype and tensor.dtype in CASTABLE and lists_apply():
        tensor = torch.empty_like(tensor, dtype=dtype, device="meta")
    return original(module, tensor, *others, **keywords)


def not_held(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that refuses tensors with weak references, such as a cached cast holds."""
    for tensor in (*arguments, *keywords.values()):
        _core.weights_forget(tensor)
        _core.forget_known(tensor)
    return original(*arguments, **keywords)


#: Functions with a kernel for float32 only (rule 8).
FLOAT32_ONLY: Table = {
    "torch.ao.nn.quantized.dynamic.modules.linear": ("Linear.forward",),
    "torch.ao.nn.quantized.dynamic.modules.rnn": ("*.forward",),
    "torch.ao.nn.intrinsic.quantized.dynamic.modules.linear_relu": ("LinearReLU.forward",),
}

TAKES_NESTED: Table = {
    "torch.nn.modules.activation": ("MultiheadAttention.forward",),
    "torch.nn.modules.transformer": ("TransformerEncoderLayer.forward",),
}
COMPARES_DTYPES: Table = {"torch.nn.modules.rnn": ("RNNBase.check_input",)}

_CHECKS = assumption_of_functions(
    "torch.functions-that-check-dtypes",
    "torch has the functions by which modules check dtypes, find fused kernels or take float32, and `swap_tensors`",
    "torch refuses an input that was lowered, or to exchange a weight whose cast is cached",
)

EXCHANGES = (
    Exchange(in_float32, FLOAT32_ONLY, _CHECKS),
    Exchange(not_held, {"torch.utils": ("swap_tensors",)}, _CHECKS),
    Exchange(unfused, {"torch.backends.mha": ("get_fastpath_enabled",)}, _CHECKS),
    Exchange(fused_if_nested, TAKES_NESTED, _CHECKS, positional=1),
    Exchange(compared_as_cast, COMPARES_DTYPES, _CHECKS, positional=2, names=("_flat_weights",)),
)
