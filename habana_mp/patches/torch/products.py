"""Products in lower precision that autograd tracks, on processors without instructions for that precision.

A product is one thing on every processor: the operands are rounded, the products are summed in float32, and the sum is
rounded once. So the functions here compute in float32 with the rounded operands, in the forward and in the backward.
They save the operands in their lower precision. A call that they do not take is computed by torch's own function in
float32, from operands that autograd casts (``compute_in_float32`` in src/engine/products.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def _of_convolutions(name: str) -> dict[Any, tuple[int, Any]]:
    """Returns the dimensions of images, and the function that no list reaches, by torch's function."""
    functions = [(count, getattr(torch._C._VariableFunctions, f"{name}{count}d")) for count in (1, 2, 3)]
    return {one: (count, _core.unpatched_copy(one)) for count, one in functions}


_convolutions, _transposed_convolutions = _of_convolutions("conv"), _of_convolutions("conv_transpose")


def _float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()


def _apply(function: Any, *arguments: Any) -> Tensor:
    """Calls ``function.apply``, which torch does not type."""
    result: Tensor = function.apply(*arguments)
    return result


def product_of_rows(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns the product of rows and a weight [outer][inner]."""
    multiply = getattr(_core, "multiply", None)
    # A backward that is differentiated takes functions that autograd knows.
    made: Tensor | None = None if multiply is None or torch.is_grad_enabled() else multiply(input, weight, bias)
    if made is None:
        made = _linear(input.float(), weight.float(), _float(bias)).to(input.dtype)
    return made


class _Rows(Function):
    """A product of rows and a weight, as of ``linear``. An operand is saved if the other one needs a gradient."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        of_input, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(input if of_weight else None, weight if of_input else None)
        return product_of_rows(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        outputs = gradient.reshape(-1, gradient.shape[-1])
        of_input = of_weight = of_bias = None
        if weight is not None:
            of_input = product_of_rows(gradient, weight.t())
        if input is not None:
            of_weight = product_of_rows(outputs.t().contiguous(), input.reshape(-1, input.shape[-1]).t())
        if ctx.needs_input_grad[2]:
            of_bias = outputs.sum(0, dtype=torch.float32).to(gradient.dtype)
        return of_input, of_weight, of_bias


def _product_of_batches(one: Tensor, other: Tensor) -> Tensor:
    made: Tensor = _matmul(one.float(), other.float())
    return made.to(one.dtype)


class _Batches(Function):
    """Products of matrices, as of ``bmm``, whose batch dimensions may be expanded. An operand is saved if the other one
    needs a gradient."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, other: Tensor) -> Tensor:
        of_one, of_other = ctx.needs_input_grad
        ctx.save_for_backward(one if of_other else None, other if of_one else None)
        ctx.shapes = one.shape, other.shape
        return _product_of_batches(one, other)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        one, other = ctx.saved_tensors
        of_one = None if other is None else _product_of_batches(gradient, other.mT).sum_to_size(ctx.shapes[0])
        of_other = None if one is None else _product_of_batches(one.mT, gradient).sum_to_size(ctx.shapes[1])
        return of_one, of_other


class _Convolution(Function):
    """A convolution by a function of torch, and its options, which are those of ``torch.convolution``."""

    @staticmethod
    def forward(ctx: Any, function: Any, options: Any, given: Any, *tensors: Tensor | None) -> Tensor:
        input, weight, bias = tensors
        assert input is not None
        ctx.save_for_backward(input, weight)
        ctx.options, ctx.bias = options, None if bias is None else bias.shape
        made: Tensor = function(*map(_float, tensors), *given)
        return made.to(input.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        mask = ctx.needs_input_grad[3:]
        made = torch.ops.aten.convolution_backward(
            gradient.float(), input.float(), weight.float(), ctx.bias, *ctx.options, mask
        )
        return None, None, None, *(None if one is None else one.to(gradient.dtype) for one in made)


# ---- calls as they are written: a torch function and its arguments ---------------------------------------------------


def _are_alike(tensors: Sequence[Any], dimensions: Sequence[int]) -> bool:
    """True if all are tensors with values, in one precision, and with so many dimensions."""
    return all(
        isinstance(one, Tensor) and one.dtype is tensors[0].dtype and one.dim() == count and one.numel() != 0
        for one, count in zip(tensors, dimensions, strict=True)
    )


def _call_linear(_: Any, arguments: tuple[Any, ...]) -> Any:
    input, weight, bias = (*arguments, None)[:3]
    if not isinstance(input, Tensor) or input.dim() < 2 or not _are_alike((input, weight), (input.dim(), 2)):
        return NotImplemented
    if bias is not None and not _are_alike((input, bias), (input.dim(), 1)):
        return NotImplemented
    return _apply(_Rows, input, weight, bias)


def _call_addmm(_: Any, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 3 or not _are_alike(arguments, (1, 2, 2)) or len(arguments[0]) != arguments[2].shape[1]:
        return NotImplemented
    bias, input, weight = arguments
    return _apply(_Rows, input, weight.t(), bias)


def _call_mm(_: Any, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 2 or not _are_alike(arguments, (2, 2)):
        return NotImplemented
    return _apply(_Rows, arguments[0], arguments[1].t(), None)


def _call_bmm(_: Any, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 2 or not _are_alike(arguments, (3, 3)) or len(arguments[0]) != len(arguments[1]):
        return NotImplemented
    return _apply(_Batches, *arguments)


def _call_matmul(_: Any, arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 2 or not all(isinstance(one, Tensor) and one.dim() > 1 for one in arguments):
        return NotImplemented
    input, other = arguments
    if not _are_alike(arguments, (input.dim(), other.dim())):
        return NotImplemented
    return _apply(_Rows, input, other.t(), None) if other.dim() == 2 else _apply(_Batches, input, other)


def _for_each(value: Any, dimensions: int) -> list[int]:
    numbers = [*value] if isinstance(value, (list, tuple)) else [value]
    return numbers * dimensions if len(numbers) == 1 else numbers


#: The arguments after input, weight and bias, as they are left out.
_OPTIONS = {"convolution": (1, 0, 1, 1), "transposed": (1, 0, 0, 1, 1)}


def _call_convolution(called: Any, arguments: tuple[Any, ...]) -> Any:
    return _convolved(called, arguments, _OPTIONS["convolution"], _convolutions)


def _call_transposed_convolution(called: Any, arguments: tuple[Any, ...]) -> Any:
    return _convolved(called, arguments, _OPTIONS["transposed"], _transposed_convolutions)


def _convolved(called: Any, arguments: tuple[Any, ...], defaults: tuple[int, ...], functions: dict[Any, Any]) -> Any:
    tensors, given = (*arguments, None, None, None)[:3], arguments[3:]
    options = (*given, *defaults[len(given) :])
    count, function = functions.get(called, (0, None))
    is_plain = not any(isinstance(one, str) for one in options)
    if not is_plain or function is None or not _are_alike(tensors[:2], (count + 2, count + 2)):
        return NotImplemented
    if tensors[2] is not None and not _are_alike((tensors[0], tensors[2]), (count + 2, 1)):
        return NotImplemented
    stride, padding, *rest = options
    dilation, more, groups = (rest[2], rest[0], rest[1]) if len(rest) == 3 else (rest[0], 0, rest[1])
    spread = [_for_each(one, count) for one in (stride, padding, dilation, more)]
    if any(len(one) != count for one in spread):
        return NotImplemented
    of_torch = (*spread[:3], len(rest) == 3, spread[3], groups)
    return _apply(_Convolution, function, of_torch, options, *tensors)


_TRACKED: dict[str, Callable[..., Any]] = {
    "linear": _call_linear,
    "addmm": _call_addmm,
    "mm": _call_mm,
    "matmul": _call_matmul,
    "bmm": _call_bmm,
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
