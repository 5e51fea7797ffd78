"""Operations that torch makes of matrix products: ``torch.autocast`` reaches the ``bmm`` and ``mm`` inside of them.

The lists of a preset that says what ``torch.autocast`` does name them too, for those of their calls that make such a
product. The others run in the widest precision among their inputs: angles of a rotary embedding, ``einsum("i,j->ij",
positions, frequencies)``, are products of numbers, and would lose their positions in bfloat16. Of an operation that
makes other things besides, only the products are meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


@lru_cache(maxsize=1024)
def _sums_products(equation: str) -> bool:
    """Are products added up: is an index of two operands not one of the result?"""
    inputs, arrow, result = equation.replace(" ", "").replace("...", ".").partition("->")
    operands = inputs.split(",")
    shared = {index for index in inputs if sum(index in operand for operand in operands) > 1}
    # Without a result written down it has the indices that stand once, and all that the dots are for.
    return not shared <= set(result if arrow else ".")


def _einsum_makes_product(equation: str, *_: Any, **__: Any) -> bool:
    return _sums_products(equation)


def _inner_makes_product(input: Tensor, other: Tensor, **_: Any) -> bool:
    # Of two vectors it is `dot`.
    return input.dim() > 1 or other.dim() > 1


def _tensordot_makes_product(
    input: Tensor, other: Tensor, dims_self: Sequence[int], dims_other: Sequence[int], **_: Any
) -> bool:
    # A number is the sum of an elementwise product.
    return len(dims_self) < input.dim() or len(dims_other) < other.dim()


#: Who tells, of a call's arguments, whether it makes a matrix product. The rest of these operations always do.
MAKES_PRODUCT: dict[str, Callable[..., bool]] = {
    "einsum": _einsum_makes_product,
    "inner": _inner_makes_product,
    "tensordot": _tensordot_makes_product,
}

#: All that consist of products.
MADE_OF_PRODUCTS = frozenset(("chain_matmul", "linalg_multi_dot", *MAKES_PRODUCT))


def _is_exporting() -> bool:
    return bool(getattr(torch.compiler, "is_exporting", bool)())


def _lstm_is_fused(input: Tensor, state: Sequence[Tensor], *_: Any, **__: Any) -> bool:
    # Of packed sequences, of none, or with a projection, torch makes it of products.
    if isinstance(state, Tensor) or state[0].shape[-1] != state[1].shape[-1] or input.numel() == 0:
        return False
    library: Any = torch.backends.mkldnn
    # While a model is exported torch switches it off, for operations that it does not know.
    return input.device.type != "cpu" or bool(library.is_available() and (library.enabled or _is_exporting()))


#: What else they consist of stays as it is: the state of a recurrent layer, which each step of a sequence rounds again.
#: And who tells, of a call's arguments, whether one kernel computes it as a whole; None where there is no such kernel.
PRODUCTS_INSIDE: dict[str, Callable[..., bool] | None] = {
    "gru": None,
    "lstm": _lstm_is_fused,
    "rnn_relu": None,
    "rnn_tanh": None,
}

#: Names that mean the products of such an operation in any list: of a kernel that does not compute all of its calls.
MEAN_PRODUCTS = frozenset(("mkldnn_rnn_layer",))
