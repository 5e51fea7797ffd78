"""Products in lower precision that autograd tracks: on processors without instructions for that precision, and those
with a float32 result.

A product is one thing on every processor: the operands are rounded, the products are summed in float32, and the sum is
rounded once. So the functions here compute in float32 with the rounded operands, in the forward and in the backward.
They save the operands in their lower precision. A call that they do not take is computed by torch's own function in
float32, from operands that autograd casts (``compute_in_float32`` in src/engine/products.cpp).

A float32 result (`linear -> fp32`) is the sum without its rounding. Its gradient is rounded once; each operand's
gradient is a sum of products with it, in the precision that the operand was given in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import Function

from habana_mp import _core
from habana_mp.common.ledger import Assumption, holds
from habana_mp.patches.tools.compiled_functions import is_compiling
from habana_mp.patches.tools.patch import Patch, Settings

_FLOAT16 = Assumption(
    "torch.float16-instructions",
    assumed="torch.ops.mkldnn tells if its library has instructions for float16 on this processor",
    check="`_is_mkldnn_fp16_supported` answers",
    otherwise="products in float16 are computed in float32",
)

#: torch's own functions, which no list reaches and no report shows. The same holds for attributes (`mT`, not `t()`).
_linear = _core.unpatched_copy(torch._C._nn.linear)
_matmul, _mm, _mul, _add, _sum, _convolution, _reshape, _permute, _clone, _detach = (
    _core.unpatched_copy(getattr(torch._C._VariableFunctions, name))
    for name in ("matmul", "mm", "mul", "add", "sum", "convolution", "reshape", "permute", "clone", "detach")
)


def _dimensions(name: str) -> dict[Any, int]:
    """Returns the dimensions of images by torch's function."""
    return {getattr(torch._C._VariableFunctions, f"{name}{count}d"): count for count in (1, 2, 3)}


def _float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()


def _rows(tensor: Tensor) -> Tensor:
    """Returns the matrix of all rows of the tensor."""
    rows: Tensor = _reshape(tensor, (-1, tensor.shape[-1]))
    return rows


def _apply(function: Any, *arguments: Any) -> Tensor:
    """Calls ``function.apply``, which torch does not type."""
    result: Tensor = function.apply(*arguments)
    return result


def product_of_rows(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Returns the product of rows and a weight [outer][inner]: in the operands' precision, or with a bias in float32 in
    float32."""
    is_float32 = dtype is torch.float32
    # A backward that is differentiated takes functions that autograd knows.
    made: Tensor | None = None
    if not torch.is_grad_enabled():
        is_outer = input.shape[-1] == 1 and bias is None and not is_float32  # nothing is summed
        made = _mul(input, weight.mT) if is_outer else _core.multiply(input, weight, bias, is_float32)
    if made is None and is_float32 and not torch.is_grad_enabled() and _sums_leave_kernel(input.device.type):
        rows: Tensor = _mm(_rows(input), weight.mT, out_dtype=torch.float32)
        made = _reshape(rows if bias is None else _add(rows, bias), (*input.shape[:-1], -1))
    if made is None:
        made = _linear(input.float(), weight.float(), _float(bias)).to(input.dtype if dtype is None else dtype)
    return made


@cache
def _sums_leave_kernel(device_type: str) -> bool:
    """True if torch has products of this device's lower precisions with a float32 result."""
    if device_type not in ("cuda", "xpu"):
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm.dtype", device_type.upper())


class _Rows(Function):
    """A product of rows and a weight, as of ``linear``. An operand is saved if the other one needs a gradient.

    For a float32 result, ``casts`` are the operands' casts, and the gradients go to the operands as they were given.
    autograd gets no edge to these casts, but they are saved with their own graph: a gradient that is differentiated is
    a function of them.
    """

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, casts: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        ctx.dtypes = input.dtype, weight.dtype
        if casts is not None:
            (input, weight), bias = casts, _float(bias)
        of_input, of_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(input if of_weight else None, weight if of_input else None)
        ctx.lower = input.dtype
        return product_of_rows(input, weight, bias, None if casts is None else torch.float32)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        rounded = gradient.to(ctx.lower)
        of_input = of_weight = of_bias = None
        if weight is not None:
            of_input = product_of_rows(rounded, weight.mT, None, ctx.dtypes[0])
        if input is not None:
            outputs = _clone(_rows(rounded).mT, memory_format=torch.contiguous_format)
            of_weight = product_of_rows(outputs, _rows(input).mT, None, ctx.dtypes[1])
        if ctx.needs_input_grad[2]:
            of_bias = _sum(_rows(rounded), 0, dtype=torch.float32).to(gradient.dtype)
        return of_input, of_weight, of_bias, None


class _Widened(Function):
    """An operand in float32, made of its cast, with the gradient of the tensor before the cast."""

    generate_vmap_rule = True

    @staticmethod
    def forward(operand: Tensor, given: Tensor, is_compiled: bool) -> Tensor:
        return _in_float32(operand, is_compiled)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.dtype = inputs[1].dtype

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, gradient.to(ctx.dtype), None

    @staticmethod
    def jvp(ctx: Any, of_cast: Tensor | None, of_given: Tensor, _: None) -> Tensor:
        return of_given.float()


def widened(operands: tuple[Any, ...], given: tuple[Any, ...], is_traced: bool) -> tuple[Any, ...]:
    """Returns the operands of a product in float32. Their gradients go to the arguments as they were given."""
    is_compiled = is_traced and _is_compiled()
    return tuple(_widened(one, before, is_compiled) for one, before in zip(operands, given, strict=True))


def _widened(operand: Any, given: Any, is_compiled: bool) -> Any:
    if isinstance(operand, (list, tuple)):
        return type(operand)([_widened(one, its, is_compiled) for one, its in zip(operand, given, strict=True)])
    if not isinstance(operand, Tensor) or operand.dtype not in (torch.bfloat16, torch.float16):
        return operand
    if given.requires_grad and torch.is_grad_enabled() and not _is_recorded():
        return _apply(_Widened, _detach(operand), given, is_compiled)
    return _in_float32(operand, is_compiled)


def _in_float32(tensor: Tensor, is_compiled: bool) -> Tensor:
    made: Tensor = _operator()(tensor) if is_compiled else tensor.float()
    return made


@cache
def operators() -> Any:
    """Returns torch's library of the package's operators, which lives as long as the process: compiled code may outlive
    ``convert``."""
    return cast(Any, torch.library.Library)("habana_mp", "FRAGMENT")


@cache
def _operator() -> Any:
    """Returns `habana_mp::widened`. Inductor leaves out casts to a lower precision and back, and knows no other name of
    the second one."""
    operators().define("widened(Tensor value) -> Tensor")
    operators().impl("widened", Tensor.float, "CompositeExplicitAutograd")
    return torch.ops.habana_mp.widened.default


def _is_recorded() -> bool:
    """True while torch.jit or torch.export records calls. The record holds no function of Python: there gradients go
    through the casts."""
    jit: Any = torch.jit  # it has no types
    return torch.compiler.is_exporting() or bool(jit.is_tracing())


def _is_compiled() -> bool:
    """True while torch.compile traces, and not an export: its graphs run without this package."""
    return (torch.compiler.is_compiling() or is_compiling()) and not torch.compiler.is_exporting()


def with_rounded_gradient(result: Tensor, dtype: torch.dtype, is_traced: bool) -> Tensor:
    """Returns the result of a product, so that its gradient is rounded once. A function of autograd would return a
    view, which nothing may write into."""
    if result.requires_grad and not _is_recorded():
        is_compiled, hooked = is_traced and _is_compiled(), cast(Any, result)
        hooked.register_hook(lambda gradient: _in_float32(gradient.to(dtype), is_compiled))
    return result


def _product_of_batches(one: Tensor, other: Tensor) -> Tensor:
    multiplies = multiplies_bfloat16() if one.dtype is torch.bfloat16 else multiplies_float16()
    made: Tensor | None = None
    if multiplies:
        made = _matmul(one, other)
    elif not torch.is_grad_enabled():
        made = _core.multiply_batches(one, other)
    return _matmul(one.float(), other.float()).to(one.dtype) if made is None else made


def _gradient_of_batches(one: Tensor, other: Tensor, shape: torch.Size) -> Tensor:
    """Returns the product of batches, summed over those along which a tensor of this shape was expanded: as one product
    of longer rows, which is rounded once."""
    dimensions = max(one.dim(), other.dim())
    one, other = (_reshape(x, (1,) * (dimensions - x.dim()) + x.shape) for x in (one, other))
    wanted = [1] * (dimensions - len(shape)) + [*shape]
    expanded = [i for i in range(dimensions - 2) if wanted[i] != max(one.shape[i], other.shape[i])]
    if expanded:
        kept = [i for i in range(dimensions - 2) if i not in expanded]
        rows, columns = _permute(one, (*kept, -2, *expanded, -1)), _permute(other, (*kept, *expanded, -2, -1))
        one = _reshape(rows, (*rows.shape[: len(kept) + 1], -1))
        other = _reshape(columns, (*columns.shape[: len(kept)], -1, columns.shape[-1]))
    made: Tensor = _reshape(_product_of_batches(one, other), shape)
    return made


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
        of_one = None if other is None else _gradient_of_batches(gradient, other.mT, ctx.shapes[0])
        of_other = None if one is None else _gradient_of_batches(one.mT, gradient, ctx.shapes[1])
        return of_one, of_other


class _Convolution(Function):
    """A convolution with the options of ``torch.convolution``."""

    @staticmethod
    def forward(ctx: Any, options: tuple[Any, ...], *tensors: Tensor | None) -> Tensor:
        input, weight, bias = tensors
        assert input is not None
        ctx.save_for_backward(input, weight)
        ctx.options, ctx.bias = options, None if bias is None else bias.shape
        made: Tensor = _convolution(*map(_float, tensors), *options)
        return made.to(input.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        mask = ctx.needs_input_grad[1:]
        made = torch.ops.aten.convolution_backward(
            gradient.float(), input.float(), weight.float(), ctx.bias, *ctx.options, mask
        )
        return None, *(None if one is None else one.to(gradient.dtype) for one in made)


# ---- calls as they are written: a torch function and its arguments ---------------------------------------------------


def _are_alike(tensors: Sequence[Any], dimensions: Sequence[int]) -> bool:
    """True if all are tensors with values, in one precision, and with so many dimensions."""
    return all(
        isinstance(one, Tensor) and one.dtype is tensors[0].dtype and one.dim() == count and one.numel() != 0
        for one, count in zip(tensors, dimensions, strict=True)
    )


def _call_linear(_: Any, arguments: tuple[Any, ...], given: tuple[Any, ...] | None) -> Any:
    input, weight, bias = (*arguments, None)[:3]
    if not isinstance(input, Tensor) or not input.dim() or not _are_alike((input, weight), (input.dim(), 2)):
        return NotImplemented
    if input.shape[-1] != weight.shape[1] or not _is_bias(bias, weight.shape[0], None if given else input.dtype):
        return NotImplemented
    return _apply_rows(input, weight, bias, given and given[:2])


def _apply_rows(input: Tensor, weight: Tensor, bias: Tensor | None, given: tuple[Any, ...] | None) -> Tensor:
    """Returns the product of rows. For a float32 result the gradients go to ``given``, the operands before their
    casts."""
    return _apply(_Rows, *(given or (input, weight)), bias, given and (input, weight))


def _is_bias(bias: Any, length: int, dtype: torch.dtype | None) -> bool:
    """True for None, or one number for each column; if ``dtype`` is None, in float32 or in lower precision."""
    if bias is None:
        return True
    dtypes = (torch.float32, torch.bfloat16, torch.float16) if dtype is None else (dtype,)
    return isinstance(bias, Tensor) and bias.shape == (length,) and bias.dtype in dtypes


def _call_addmm(_: Any, arguments: tuple[Any, ...], given: tuple[Any, ...] | None) -> Any:
    if len(arguments) != 3 or not _are_alike(arguments[1:], (2, 2)):
        return NotImplemented
    bias, input, weight = arguments
    if bias is None or input.shape[1] != weight.shape[0]:
        return NotImplemented
    if not _is_bias(bias, weight.shape[1], None if given else input.dtype):
        return NotImplemented
    return _apply_rows(input, weight.mT, bias, given and (given[1], given[2].mT))


def _call_matmul(called: Any, arguments: tuple[Any, ...], given: tuple[Any, ...] | None, dimensions: int = 0) -> Any:
    """Computes ``matmul``, or a function that takes no other operands than those with so many dimensions."""
    if len(arguments) != 2 or not all(isinstance(one, Tensor) and one.dim() for one in arguments):
        return NotImplemented
    one, other = arguments
    if not dimensions and other.dim() == 1:
        return _call_mv(called, arguments, given)
    is_taken = not dimensions or (one.dim() == dimensions == other.dim() and one.shape[:-2] == other.shape[:-2])
    if not is_taken or not _are_alike(arguments, (one.dim(), other.dim())) or one.shape[-1] != other.shape[-2]:
        return NotImplemented
    if other.dim() == 2:
        return _apply_rows(one, other.mT, None, given and (given[0], given[1].mT))
    return NotImplemented if given or one.dim() == 1 else _apply(_Batches, one, other)


def _call_mv(_: Any, arguments: tuple[Any, ...], given: tuple[Any, ...] | None) -> Any:
    if len(arguments) not in (2, 3) or not _are_alike(arguments[-2:], (2, 1)):
        return NotImplemented
    (weight, vector), bias = arguments[-2:], arguments[0] if len(arguments) == 3 else None
    if weight.shape[1] != vector.shape[0] or (bias is None and len(arguments) == 3):
        return NotImplemented
    if not _is_bias(bias, weight.shape[0], None if given else vector.dtype):
        return NotImplemented
    return _apply_rows(vector, weight, bias, given and (given[-1], given[-2]))


def _for_each(value: Any, dimensions: int) -> list[int]:
    numbers = [*value] if isinstance(value, (list, tuple)) else [value]
    return numbers * dimensions if len(numbers) == 1 else numbers


def _convolved(
    dimensions: dict[Any, int],
    defaults: tuple[int, ...],
    called: Any,
    arguments: tuple[Any, ...],
    operands: tuple[Any, ...] | None,
) -> Any:
    """Computes a convolution by one of these functions; ``defaults``: its arguments after input, weight and bias."""
    tensors, given = (*arguments, None, None, None)[:3], arguments[3:]
    options = (*given, *defaults[len(given) :])
    count = dimensions.get(called, 0)
    is_plain = not any(isinstance(one, str) for one in options)
    if operands or not is_plain or not count or not _are_alike(tensors[:2], (count + 2, count + 2)):
        return NotImplemented
    if tensors[2] is not None and not _are_alike((tensors[0], tensors[2]), (count + 2, 1)):
        return NotImplemented
    stride, padding, *rest = options
    dilation, more, groups = (rest[2], rest[0], rest[1]) if len(rest) == 3 else (rest[0], 0, rest[1])
    spread = [_for_each(one, count) for one in (stride, padding, dilation, more)]
    if any(len(one) != count for one in spread):
        return NotImplemented
    return _apply(_Convolution, (*spread[:3], len(rest) == 3, spread[3], groups), *tensors)


_TRACKED: dict[str, Callable[..., Any]] = {
    "linear": _call_linear,
    "addmm": _call_addmm,
    "mm": partial(_call_matmul, dimensions=2),
    "matmul": _call_matmul,
    "mv": _call_mv,
    "addmv": _call_mv,
    "bmm": partial(_call_matmul, dimensions=3),
    "convolution": partial(_convolved, _dimensions("conv"), (1, 0, 1, 1)),
    "transposed_convolution": partial(_convolved, _dimensions("conv_transpose"), (1, 0, 0, 1, 1)),
}


class Products(Patch):
    """Sets how products in lower precision are computed on this processor."""

    def install(self, settings: Settings) -> None:
        _core.set_products(
            multiplies_bf16=multiplies_bfloat16(),
            multiplies_f16=multiplies_float16(),
            tracked=_TRACKED,
            widened=widened,
            with_rounded_gradient=with_rounded_gradient,
        )

    def uninstall(self) -> None:
        """Leaves the settings: without rules no call reads them."""


def multiplies_bfloat16() -> bool:
    """Returns true if the processor has instructions that multiply bfloat16, and the kernels in use have them."""
    return _core.kernels_multiplies_bfloat16()


def multiplies_float16() -> bool:
    """Returns true if torch's library has instructions for float16 on this processor."""
    return holds(_FLOAT16, lambda: isinstance(_has_float16(), bool)) and _has_float16()


def _has_float16() -> bool:
    has: bool = torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return has
