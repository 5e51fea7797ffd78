"""Products of matrices and vectors, attention, and operations that torch composes of products.

``torch.autocast`` applies to the ``bmm`` and ``mm`` inside an operation that torch composes of matrix products. The
lists of a preset that follows ``torch.autocast`` name the operation too, for those of its calls that make such a
product. The other calls run in the widest precision among their inputs: the angles of a rotary embedding,
``einsum("i,j->ij", positions, frequencies)``, are products of numbers, and would lose their positions in bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

from torch import Tensor

from habana_mp.ops.operation import FIRST_INPUT, IN_PLACE, NO_KERNEL, WIDEST, Castable, Operation


def _dimension(operand: str, index: str) -> int:
    """Returns the dimension of an operand that this index names, counted from the end behind an ellipsis."""
    place = operand.index(index)
    return place - len(operand) if "." in operand[:place] else place


@lru_cache(maxsize=1024)
def _summed(equation: str) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Returns the indices of two operands that are missing in the result, each as pairs of operand and dimension.

    An ellipsis that is summed has no pairs.
    """
    inputs, arrow, result = equation.replace(" ", "").replace("...", ".").partition("->")
    operands = inputs.split(",")
    # Without an explicit result, the result has the indices that occur once, and all dimensions of the ellipsis.
    shared = {index for index in inputs if sum(index in operand for operand in operands) > 1}
    return tuple(
        tuple(
            (number, _dimension(operand, index))
            for number, operand in enumerate(operands)
            if index in operand and index != "."
        )
        for index in shared - set(result if arrow else ".")
    )


def _einsum_makes_product(equation: str, *given: Any, **_: Any) -> bool:
    operands = given[0] if len(given) == 1 and not isinstance(given[0], Tensor) else given
    return any(
        not pairs or any(operands[number].shape[dimension] != 1 for number, dimension in pairs)
        for pairs in _summed(equation)
    )


def _inner_makes_product(input: Tensor, other: Tensor, **_: Any) -> bool:
    # For two vectors it is `dot`, for a number `mul`.
    return max(input.dim(), other.dim()) > 1 and min(input.dim(), other.dim()) > 0


def _tensordot_makes_product(
    input: Tensor, other: Tensor, dims_self: Sequence[int], dims_other: Sequence[int], **_: Any
) -> bool:
    # A result without dimensions is the sum of an elementwise product.
    return len(dims_self) < input.dim() or len(dims_other) < other.dim()


def in_rows(tensor: Tensor, other: Tensor) -> Tensor:
    """Returns the first factor of a product in a graph, copied if torch would not fold its dimensions into rows because
    of its strides. In eager code the core does this (``multiply`` in src/engine/own_products.cpp)."""
    if tensor.dim() < 3 or other.dim() != 2 or tensor.device.type != "cpu":
        return tensor
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # takes long to import

    expected = None
    for size, stride in reversed([*zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)]):
        if statically_known_true(size == 1):
            continue
        if expected is not None and not statically_known_true(stride == expected):
            return tensor.contiguous()
        expected = size * stride
    return tensor


_product = partial(Operation, unlisted=FIRST_INPUT, is_product=True, caches_weights=True, product_form="other")
_gemm = partial(_product, o2="lower")
_gemm_cast_by_autocast = partial(_gemm, casts_inside=True)
_made_of_products = partial(Operation, o2="lower", made_of_products=True, caches_weights=True, product_form="other")

_GEMM = (
    _gemm_cast_by_autocast("linear", product_form="linear", wants_rows=True, added=("bias", 2)),
    _gemm_cast_by_autocast(
        "matmul",
        spellings="__rmatmul__ rmatmul",
        family="__matmul__ linalg_matmul",
        product_form="matmul",
        equivalent="matmul",
        wants_rows=True,
    ),
    _product("__matmul__", casts_inside=True, product_form="matmul", equivalent="matmul", wants_rows=True),
    _product("linalg_matmul", product_form="matmul", wants_rows=True),
    _gemm_cast_by_autocast("mm", product_form="mm", equivalent="mm"),
    _gemm_cast_by_autocast("bmm", product_form="bmm", equivalent="bmm"),
    _gemm_cast_by_autocast("addmm", product_form="addmm", added=("input", 0)),
    _gemm_cast_by_autocast("baddbmm", added=("input", 0)),
    _gemm_cast_by_autocast("addbmm", added=("input", 0), product_form="rounds_within"),
    _gemm("mv", product_form="mv"),
    _gemm("dot", unlisted=WIDEST, product_form="rounds_within"),
    _gemm("_grouped_mm", spellings="grouped_mm", added=("bias", 3)),
    _product("addmv", added=("input", 0), product_form="addmv"),
    Operation("_weight_int8pack_mm", FIRST_INPUT),
    Operation(
        "fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation",
        castable=Castable((0, 1, 2), "the result is written into", kept_keywords=("output",)),
    ),
)

_MADE_OF_PRODUCTS = (
    _made_of_products("chain_matmul", FIRST_INPUT, views_one=True),
    _made_of_products("linalg_multi_dot", FIRST_INPUT, spellings="multi_dot"),
    _made_of_products("einsum", FIRST_INPUT, makes_product=_einsum_makes_product, views_one=True),
    _made_of_products("inner", WIDEST, promotes=True, makes_product=_inner_makes_product),
    _made_of_products("tensordot", WIDEST, makes_product=_tensordot_makes_product),
)

_OF_VECTORS = (
    Operation("cross", WIDEST, family="linalg_cross"),
    Operation("outer", WIDEST, family="ger"),
    Operation("kron", WIDEST, counts_no_version=True),
    Operation("linalg_cross linalg_vecdot ger vdot", WIDEST),
    Operation("bilinear", WIDEST, caches_weights=True, product_form="rounds_within", added=("bias", 3)),
    Operation("addr_", IN_PLACE),
)

_SPARSE = (
    Operation("_sparse_mm _sparse_addmm", FIRST_INPUT, is_product=True),
    Operation("sparse_sampled_addmm smm hspmm sspaddmm", NO_KERNEL),
)

_ATTENTION = (
    # It has no `parts`, such as `softmax`: its kernels are as exact as one rounding allows.
    Operation(
        "scaled_dot_product_attention",
        FIRST_INPUT,
        castable=Castable(
            (0, 1, 2, 3),
            "on a CPU the kernel takes a float32 mask, whose finfo.min would be an infinity in lower precision",
            off_cpu=(3,),
            off_cpu_keywords=("attn_mask",),
        ),
        product_form="other",
    ),
    # The code of its module may be exchanged, so it does not show this call.
    Operation("multi_head_attention_forward", spellings="MultiheadAttention"),
    # The CPU kernel of attention, as a torch function and as an operator.
    Operation(
        "_scaled_dot_product_flash_attention_for_cpu aten::_scaled_dot_product_flash_attention_for_cpu",
        FIRST_INPUT,
        castable=Castable(
            (0, 1, 2),
            "the kernel takes a float32 mask, whose finfo.min would be an infinity in lower precision",
            kept_keywords=("dropout_p", "is_causal", "scale"),
            raised_keywords=("attn_mask",),
        ),
    ),
)

ROWS = (*_GEMM, *_MADE_OF_PRODUCTS, *_OF_VECTORS, *_SPARSE, *_ATTENTION)
