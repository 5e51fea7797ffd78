"""Functions of torch's modules that ask for dtypes or fused kernels beforehand, and one that exchanges tensors."""

from __future__ import annotations

from typing import Any

import torch

from habana_mp import _core
from habana_mp.patches.tools.casts_off import casts_off
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_functions, originals
from habana_mp.patches.tools.precision_of_values import CASTABLE, in_precision_of
from habana_mp.patches.tools.region_dtypes import lists_speak

#: What the encoder layers ask before they leave their operations for a fused kernel. (It takes float32 as it is given,
#: and refuses mixed dtypes.)
ASKS_FOR_FUSED: Table = {"torch.backends.mha": ("get_fastpath_enabled",)}

#: What takes nested tensors, by a fused kernel only.
TAKES_NESTED: Table = {
    "torch.nn.modules.activation": ("MultiheadAttention.forward",),
    "torch.nn.modules.transformer": ("TransformerEncoderLayer.forward",),
}

#: What refuses an input of another dtype than the weights', unless torch.autocast is on.
COMPARES_DTYPES: Table = {"torch.nn.modules.rnn": ("RNNBase.check_input",)}

#: What exchanges the insides of tensors, and refuses to where anybody refers to one of them weakly, as kept casts do.
EXCHANGES_TENSORS: Table = {"torch.utils": ("swap_tensors",)}


def unfused(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function is exchanged for that asks for fused kernels."""
    return not lists_speak() and originals[name](*arguments, **keywords)


def fused_if_nested(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a module's forward is exchanged for that takes nested tensors, but only by its fused kernel.

    That takes one precision, and those tensors may have been lowered before.
    """
    if not any(map(_is_nested, (*arguments, *keywords.values()))) or not lists_speak():
        return originals[name](*arguments, **keywords)
    dtype = next(arguments[0].parameters()).dtype
    # Each once: the kernel attends from one tensor to itself.
    cast = {id(one): in_precision_of(dtype, one) for one in (*arguments, *keywords.values()) if _is_nested(one)}
    given = [cast.get(id(one), one) for one in arguments]
    with casts_off():
        return originals[name](*given, **{key: cast.get(id(one), one) for key, one in keywords.items()})


def _is_nested(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_nested


def compared_as_cast(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a module's method is exchanged for that compares its input's dtype with that of its weights."""
    module, tensor, *others = arguments
    dtype = module._flat_weights[0].dtype
    if tensor.dtype is not dtype and tensor.dtype in CASTABLE and lists_speak():
        tensor = torch.empty_like(tensor, dtype=dtype, device="meta")
    return originals[name](module, tensor, *others, **keywords)


def not_held(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function is exchanged for that wants tensors which nobody holds weakly."""
    for tensor in (*arguments, *keywords.values()):
        _core.weights_forget(tensor)
        _core.forget_known(tensor)
    return originals[name](*arguments, **keywords)


_MODULES = assumption_of_functions(
    "torch.functions-that-check-dtypes",
    "torch has the functions by which attention and recurrent modules check dtypes or leave for fused kernels",
    "torch itself refuses a module whose input was lowered",
)

_SWAP = assumption_of_functions(
    "torch.swap-tensors",
    "torch has `torch.utils.swap_tensors`",
    "torch refuses to exchange a weight whose cast is kept",
)

EXCHANGES = (
    Exchange(not_held, EXCHANGES_TENSORS, of_torch=_SWAP),
    Exchange(unfused, ASKS_FOR_FUSED, of_torch=_MODULES),
    Exchange(fused_if_nested, TAKES_NESTED, of_torch=_MODULES, positional=1),
    Exchange(compared_as_cast, COMPARES_DTYPES, of_torch=_MODULES, positional=2, names=("_flat_weights",)),
)
