"""Operations that pick values by index, or that write or add values at indices.

Some of them, or their gradients, add up in the lower precision, because torch has no better kernel. A sum of ones in
bfloat16 stops at 256: in ``index_add``, and in the gradient of a lookup that picks the same value often (``e[index]``,
``embedding``). If the lists apply, such a call runs in float32 and its result is rounded once (rule 8), regardless of
what lowered its inputs. Parameters in lower precision are left to torch: a cast of this package never becomes a
Parameter (rule 11), and a float32 copy of a large embedding in each step would cost too much.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from habana_mp.ops.find import ASSIGNMENT, SUBSCRIPT
from habana_mp.ops.operation import FIRST_INPUT, IN_PLACE, CallPredicate, Castable, Operation

_FLOATING = (torch.float32, torch.bfloat16, torch.float16)
_WITHOUT_FRACTIONS = (torch.int64, torch.int32, torch.int16, torch.int8)


def _is_summed_in_float32(value: Any) -> bool:
    """True for a floating tensor, unless it is a Parameter in lower precision or a view of one."""
    if not isinstance(value, Tensor) or value.dtype not in _FLOATING:
        return False
    return value.dtype is torch.float32 or not _shows_parameter(value)


def _shows_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter) or (
        tensor._is_view() and isinstance(tensor._base, torch.nn.Parameter)
    )


def _adds_up(*arguments: Any, **keywords: Any) -> bool:
    """True if ``index_add`` with these arguments must add up in float32."""
    return any(map(_is_summed_in_float32, (*arguments, *keywords.values())))


def _adds_up_if_told(*arguments: Any, **keywords: Any) -> bool:
    """True if ``index_put`` or ``put`` with these arguments accumulates, and must add up in float32."""
    accumulates = arguments[3] if len(arguments) > 3 else keywords.get("accumulate", False)
    return bool(accumulates) and _adds_up(*arguments, **keywords)


def _looks_up(*arguments: Any, **keywords: Any) -> bool:
    """True if autograd tracks this lookup in the first input, and its gradient must add up in float32."""
    source = arguments[0] if arguments else keywords.get("input")
    return (
        isinstance(source, Tensor)
        and source.requires_grad
        and torch.is_grad_enabled()
        and _is_summed_in_float32(source)
    )


def _looks_up_unless_sparse(position: int) -> CallPredicate:
    """Returns the test for ``embedding`` and similar functions, with ``sparse=`` at this position. False for a sparse
    gradient, which no cast can pass on.

    A lookup in a float32 weight runs in float32, tracked by autograd or not: rounding the result takes less time than
    rounding the whole weight.
    """

    def tells(*arguments: Any, **keywords: Any) -> bool:
        is_sparse = arguments[position] if len(arguments) > position else keywords.get("sparse", False)
        weight = keywords["weight"] if "weight" in keywords else arguments[0]
        return not is_sparse and (weight.dtype is torch.float32 or _looks_up(weight))

    return tells


def _looks_up_by_index(source: Tensor, key: Any) -> bool:
    """The same for ``source[key]``. Masks and single numbers pick no value twice."""
    return any(map(_is_index, key if isinstance(key, tuple) else (key,))) and _looks_up(source)


def _is_index(part: Any) -> bool:
    if isinstance(part, Tensor):
        return part.dtype in _WITHOUT_FRACTIONS and part.dim() != 0
    return not isinstance(part, (int, slice)) and part is not None and part is not Ellipsis


_bag = partial(Operation, unlisted=FIRST_INPUT, sums=_looks_up_unless_sparse(5), sparse_gradient=("sparse", 5))

_PICKING = (
    Operation(SUBSCRIPT, castable=Castable((0,), "the key selects values"), sums=_looks_up_by_index),
    Operation("index_select take repeat_interleave", sums=_looks_up),
    # O2 leaves these in their input's precision: one only picks values, the other returns positions.
    Operation("gather", o2="input", sparse_gradient=("sparse_grad", 255)),
    Operation("nonzero", o2="input"),
)

_EMBEDDINGS = (
    Operation("embedding", sums=_looks_up_unless_sparse(4), sparse_gradient=("sparse", 4)),
    _bag("embedding_bag _embedding_bag"),
)

_WRITING = (
    Operation(ASSIGNMENT, IN_PLACE, castable=Castable((0, 2), "the key selects values"), saturates="numbers"),
    Operation("index_add", FIRST_INPUT, sums=_adds_up),
    Operation("index_put", FIRST_INPUT, sums=_adds_up_if_told, saturates="all"),
    Operation("put", FIRST_INPUT, sums=_adds_up_if_told),
    Operation("scatter", FIRST_INPUT, saturates="all"),
    Operation("index_fill index_fill_ index_put_ scatter_", saturates="all"),
    Operation("scatter_add scatter_reduce index_copy index_reduce masked_scatter", FIRST_INPUT),
    Operation("select_scatter slice_scatter diagonal_scatter", FIRST_INPUT),
    Operation("_unsafe_masked_index_put_accumulate", FIRST_INPUT),
)

ROWS = (*_PICKING, *_EMBEDDINGS, *_WRITING)
