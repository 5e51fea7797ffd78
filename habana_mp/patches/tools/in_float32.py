"""Values in the precision that other code expects, and replacements for functions that run in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from habana_mp.patches.tools.casts_off import without_casts
from habana_mp.patches.tools.pytree import tree_map
from habana_mp.patches.tools.region_dtypes import lists_apply

CASTABLE = (torch.float32, torch.bfloat16, torch.float16)


def in_precision_of(dtype: torch.dtype, value: Any) -> Any:
    """Returns a tensor in this dtype, as autograd expects, if both dtypes are castable. Else the value is unchanged."""
    if isinstance(value, torch.Tensor) and value.dtype in CASTABLE and dtype in CASTABLE:
        return value.to(dtype)
    return value


def is_packed_sequence(value: Any) -> bool:
    return isinstance(value, PackedSequence)


def value_in_float32(value: Any) -> Any:
    """Returns a tensor in lower precision as float32, and any other value unchanged."""
    is_lower = isinstance(value, (torch.Tensor, PackedSequence)) and value.data.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_lower else value


def in_float32(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function with a kernel for float32 only."""
    if lists_apply():
        arguments, keywords = tree_map(value_in_float32, (arguments, keywords), is_leaf=is_packed_sequence)
    return original(*arguments, **keywords)


def exactly(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that runs with its tensors in float32, and without casts."""
    if lists_apply():
        arguments, keywords = tree_map(value_in_float32, (arguments, keywords), is_leaf=is_packed_sequence)
    return without_casts(original, arguments, keywords)
