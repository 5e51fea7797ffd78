"""Products in lower precision that autograd tracks, on processors without instructions for that precision.

A product is one thing on every processor: the operands are rounded, the products are summed in float32, and the sum is
rounded once. So the functions here compute in float32 with the rounded operands, in the forward and in the backward.
They save the operands in their lower precision. A call that they do not take is computed by torch's own function in
float32, from operands that autograd casts (``compute_in_float32`` in src/engine/products.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from habana_mp import _core
from habana_mp.common.ledger import Assumption, holds
from habana_mp.patches.tools.patch import Patch, Settings

_FLOAT16 = Assumption(
    "torch.float16-instructions",
    assumed="torch.ops.mkldnn tells if its library has instructions for float16 on this processor",
    check="`_is_mkldnn_fp16_supported` answers",
    otherwise="products in float16 are computed in float32",
)

#: torch's own functions, which no list reaches.
_linear = _core.unpatched_copy(torch._C._nn.linear)
_matmul = _core.unpatched_copy(torch._C._VariableFunctions.matmul)
_convolutions = [
    _core.unpatched_copy(getattr(torch._C._VariableFunctions, name)) for name in ("conv1d", "conv2d", "conv3d")
]
_transposed_convolutions = [
    _core.unpatched_copy(getattr(torch._C._VariableFunctions, name))
    for name in ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
]


def _float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()


def _apply(function: Any, *arguments: Any) -> Tensor:
    """Calls ``function.apply``, which torch does not type."""
    result: Tensor = function.apply(*arguments)
    return result


def product_of_rows(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns the product of rows and a weight [outer][inner]."""
    if torch.is_grad_enabled():  # the backward is differentiated
        return _apply(_Rows, input, weight, bias)
    multiply = getattr(_core, "multiply", None)
    made: Tensor | None = None if multiply is None else multiply(input, weight, bias)
    if made is None:
        made = _linear(input.float(), weight.float(), _float(bias)).to(input.dtype)
    return made


class _Rows(Function):
    """A product of rows and a weight, as of ``linear``."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        return product_of_rows(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        rows, outputs = input.flatten(0, -2), gradient.flatten(0, -2)
        of_input, of_weight, of_bias = ctx.needs_input_grad
        return (
            product_of_rows(gradient, weight.t()) if of_input else None,
            product_of_rows(outputs.t().contiguous(), rows.t()) if of_weight else None,
            outputs.sum(0, dtype=torch.float32).to(gradient.dtype) if of_bias else None,
        )


def _product_of_batches(one: Tensor, other: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        return _apply(_Batches, one, other)
    made: Tensor = _matmul(one.float(), other.float())
    return made.to(one.dtype)


class _Batches(Function):
    """Products of matrices, as of ``bmm``, whose batch dimensions may be expanded."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, other: Tensor) -> Tensor:
        ctx.save_for_backward(one, other)
        return _product_of_batches(one, other)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        one, other = ctx.saved_tensors
        of_one, of_other = ctx.needs_input_grad
        return (
            _product_of_batches(gradient, other.mT).sum_to_size(one.shape) if of_one else None,
            _product_of_batches(one.mT, gradient).sum_to_size(other.shape) if of_other else None,
        )


class _Convolution(Function):
    """A convolution, transposed if ``options`` says so. They are those of ``torch.convolution``."""

    @staticmethod
    def forward(ctx: Any, function: Any, input: Tensor, weight: Tensor, bias: Tensor | None, *given: Any) -> Tensor:
        call, options = function
        ctx.save_for_backward(input, weight)
        ctx.options, ctx.bias = options, None if bias is None else bias.shape
        made: Tensor = call(input.float(), weight.float(), _float(bias), *given)
        return made.to(input.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        mask = ctx.needs_input_grad[1:4]
        made = torch.ops.aten.convolution_backward(
            gradient.float(), input.float(), weight.float(), ctx.bias, *ctx.options, mask
        )
        given = (None if one is None else one.to(gradient.dtype) for one in made)
        return None, *given, *[None] * (len(ctx.needs_input_grad) - 4)


# ---- calls as they are written: the arguments are those of torch's functions -----------------------------------------


def _call_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if input.dim() < 2 or input.numel() == 0 or weight.dim() != 2 or (bias is not None and bias.dim() != 1):
        return NotImplemented
    return _apply(_Rows, input, weight, bias)


def _call_addmm(bias: Tensor, input: Tensor, weight: Tensor, **options: Any) -> Any:
    if options or bias.dim() != 1 or len(bias) != weight.shape[1] or input.numel() == 0:
        return NotImplemented
    return _apply(_Rows, input, weight.t(), bias)


def _call_matmul(input: Tensor, other: Tensor) -> Any:
    if input.dim() < 2 or other.dim() < 2 or input.numel() == 0 or other.numel() == 0:
        return NotImplemented
    return _apply(_Rows, input, other.t(), None) if other.dim() == 2 else _apply(_Batches, input, other)


def _for_each(value: Any, dimensions: int) -> list[int]:
    numbers = [*value] if isinstance(value, (list, tuple)) else [value]
    return numbers * dimensions if len(numbers) == 1 else numbers


def _call_convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    count = weight.dim() - 2
    if input.dim() != weight.dim() or isinstance(padding, str):
        return NotImplemented
    options = [_for_each(one, count) for one in (stride, padding, dilation)]
    function = _convolutions[count - 1], (*options, False, [0] * count, groups)
    return _apply(_Convolution, function, input, weight, bias, stride, padding, dilation, groups)


def _call_transposed_convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    count = weight.dim() - 2
    if input.dim() != weight.dim():
        return NotImplemented
    options = [_for_each(one, count) for one in (stride, padding, dilation)]
    function = _transposed_convolutions[count - 1], (*options, True, _for_each(output_padding, count), groups)
    return _apply(_Convolution, function, input, weight, bias, stride, padding, output_padding, groups, dilation)


_TRACKED: dict[str, Callable[..., Any]] = {
    "linear": _call_linear,
    "addmm": _call_addmm,
    "mm": _call_matmul,
    "matmul": _call_matmul,
    "bmm": _call_matmul,
    "convolution": _call_convolution,
    "transposed_convolution": _call_transposed_convolution,
}


class Products(Patch):
    """Sets how products in lower precision are computed on this processor."""

    def install(self, settings: Settings) -> None:
        _core.set_products(multiplies_bf16=multiplies_bfloat16(), multiplies_f16=multiplies_float16(), tracked=_TRACKED)

    def uninstall(self) -> None:
        """Leaves the settings: without rules no call reads them."""


def multiplies_bfloat16() -> bool:
    """Returns true if the processor has instructions that multiply bfloat16, and the kernels in use have them."""
    return _core.kernels_multiplies_bfloat16()


def multiplies_float16() -> bool:
    """Returns true if torch's library has instructions for float16 on this processor."""
    return holds(_FLOAT16, _ask_for_float16) and torch.ops.mkldnn._is_mkldnn_fp16_supported()


def _ask_for_float16() -> bool:
    return isinstance(torch.ops.mkldnn._is_mkldnn_fp16_supported(), bool)
