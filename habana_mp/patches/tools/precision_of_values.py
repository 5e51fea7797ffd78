"""Values in the precision that other code expects of them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

CASTABLE = (torch.float32, torch.bfloat16, torch.float16)


def in_precision_of(dtype: torch.dtype, value: Any) -> Any:
    """What autograd takes where it expects a tensor of this dtype."""
    if isinstance(value, torch.Tensor) and value.dtype in CASTABLE and dtype in CASTABLE:
        return value.to(dtype)
    return value


def is_packed_sequence(value: Any) -> bool:
    return isinstance(value, PackedSequence)


def in_float32(value: Any) -> Any:
    """Where it is a tensor in lower precision; anything else as it is."""
    is_lower = isinstance(value, (torch.Tensor, PackedSequence)) and value.data.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_lower else value
