"""Values in the precision that other code expects."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

CASTABLE = (torch.float32, torch.bfloat16, torch.float16)


def in_precision_of(dtype: torch.dtype, value: Any) -> Any:
    """Returns a tensor in this dtype, as autograd expects, if both dtypes are castable. Else the value is unchanged."""
    if isinstance(value, torch.Tensor) and value.dtype in CASTABLE and dtype in CASTABLE:
        return value.to(dtype)
    return value


def is_packed_sequence(value: Any) -> bool:
    return isinstance(value, PackedSequence)


def in_float32(value: Any) -> Any:
    """Returns a tensor in lower precision as float32, and any other value unchanged."""
    is_lower = isinstance(value, (torch.Tensor, PackedSequence)) and value.data.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_lower else value
