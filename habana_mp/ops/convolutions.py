"""Convolutions, and those that the CPU library gets wrong in bfloat16.

This was seen with oneDNN of torch 2.4 to 2.15 on AVX512_BF16 and AMX, in plain torch too. The result, or a gradient if
autograd tracks one, is uninitialized memory, or the library writes outside its buffers. Such a convolution runs in
float32 (rule 8). ``tests/rules/test_convolutions.py`` searches for further cases, and finds more of them between guard
pages (``tests/sanitize/run.sh pages``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from habana_mp.ops.operation import FIRST_INPUT, Operation

_Numbers = int | Sequence[int]

#: With fewer input channels than this, the library uses its code for images of few colours.
_CHANNELS_OF_A_BLOCK = 16

#: With fewer input channels than this, the library's code for AMX puts several positions of a row into a block.
_FEW_CHANNELS = 32
_BLOCK = 32
#: Shorter rows of a kernel were right.
_SHORTEST_ROW = 4


def _has_wrong_result(
    weight: Tensor, sizes: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> bool:
    """True if the library gets the result of a convolution of images of these sizes wrong. This was seen with images in
    channels-last order, which a packed weight uses too. There are six cases. Some of their convolutions are right:

    - With AMX: there are few input channels, and a row of the kernel, over all channels, fills blocks of the tiles.
    - With AMX: the result is one position wide, with a stride.
    - The stride is larger than the padding on both sides: the padding that the library counts on the right may cancel
      the padding that it counts on the left.
    - The stride is at least as large as the width of the images.
    - Images of one colour, or groups of one channel, have a stride in rows only.
    - Volumes have fewer frames than the kernel is deep.
    """
    kernel, reach = weight.shape[2:], _reach(weight.shape[2:], dilation)
    width, step, beside = sizes[-1], stride[-1], padding[-1]
    fills_blocks = 1 < weight.shape[1] < _FEW_CHANNELS and weight.shape[1] * kernel[-1] % _BLOCK == 0
    if fills_blocks and kernel[-1] >= _SHORTEST_ROW and dilation[-1] == 1:
        return True
    if len(kernel) == 3 and sizes[0] < reach[0]:
        return True
    if len(kernel) == 1 or step == 1:
        return False
    is_one_position = width + 2 * beside - reach[-1] < step
    is_in_rows_only = stride[-2] == 1 and weight.shape[1] == 1
    return is_one_position or is_in_rows_only or width <= step or 0 < 2 * beside < step


def _has_wrong_gradient(
    weight: Tensor, sizes: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> bool:
    """True if the library gets the weight's gradient wrong for a convolution of images of these sizes. For a transposed
    convolution the sizes are those of the result. There are four cases:

    - The stride is larger than the width.
    - Volumes have fewer frames than the kernel is deep.
    - The kernel extends beyond the images of a volume both above and below.
    - The kernel is a single point, with a stride and few input channels.
    """
    kernel = weight.shape[2:]
    if sizes[-1] < stride[-1]:
        return True
    if len(kernel) == 3:
        deep, high, _ = _reach(kernel, dilation)
        if sizes[0] < deep or sizes[1] + padding[1] < high:
            return True
    is_strided_product = max(kernel) == 1 < max(stride)
    return is_strided_product and weight.shape[1] < _CHANNELS_OF_A_BLOCK


def _reach(kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    return [apart * (size - 1) + 1 for size, apart in zip(kernel, dilation, strict=True)]


def _is_recorded(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _for_each(value: _Numbers, weight: Tensor) -> Sequence[int]:
    count = weight.dim() - 2
    if isinstance(value, Sequence):
        return value if len(value) == count else [*value] * count
    return [value] * count


def wrong_in_bf16(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Numbers = 1,
    padding: Any = 0,
    dilation: _Numbers = 1,
    groups: int = 1,
) -> bool:
    """True if ``conv1d``, ``conv2d`` or ``conv3d`` with these arguments is wrong in bfloat16."""
    if weight.device.type != "cpu":
        return False
    stride, dilation, sizes = _for_each(stride, weight), _for_each(dilation, weight), input.shape[2 - weight.dim() :]
    # Padding by name counts as zero: it is zero, or there is no stride, and zero is on the safe side.
    beside = _for_each(0 if isinstance(padding, str) else padding, weight)
    if _has_wrong_result(weight, sizes, stride, beside, dilation):
        return True
    return _is_recorded(weight) and _has_wrong_gradient(weight, sizes, stride, beside, dilation)


def is_wrong_transposed(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Numbers = 1,
    padding: _Numbers = 0,
    output_padding: _Numbers = 0,
    groups: int = 1,
    dilation: _Numbers = 1,
) -> bool:
    """True if ``conv_transpose1d`` or a similar function with these arguments has a wrong gradient in bfloat16, or
    rounds within its sums. The gradient of its input is a convolution of the result's gradient."""
    if weight.device.type != "cpu":
        return False
    stride, dilation = _for_each(stride, weight), _for_each(dilation, weight)
    padding, output_padding = _for_each(padding, weight), _for_each(output_padding, weight)
    # The library takes no such call, and torch's own code rounds within the sums.
    if any(more >= step for more, step in zip(output_padding, stride, strict=True)):
        return True
    if not (_is_recorded(weight) or _is_recorded(input)):
        return False
    before, reach = input.shape[2 - weight.dim() :], _reach(weight.shape[2:], dilation)
    sizes = [
        (size - 1) * step - 2 * beside + length + more
        for size, step, beside, length, more in zip(before, stride, padding, reach, output_padding, strict=True)
    ]
    if _is_recorded(input) and _has_wrong_result(weight, sizes, stride, padding, dilation):
        return True
    return _is_recorded(weight) and _has_wrong_gradient(weight, sizes, stride, padding, dilation)


def _may_be_wrong(input: Tensor, *_: Any, **__: Any) -> bool:
    """True for ``torch.convolution`` on a CPU: code calls the functions of one kind instead."""
    return input.device.type == "cpu"


_convolution = partial(Operation, unlisted=FIRST_INPUT, caches_weights=True, product_form="other")
_cast_by_autocast = partial(
    _convolution, is_product=True, o2="lower", casts_inside=True, product_form="convolution", added=("bias", 2)
)
_transposed = partial(_cast_by_autocast, product_form="transposed_convolution")
_ALL = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"

ROWS = (
    _cast_by_autocast("conv1d conv2d", wrong_in_bf16=wrong_in_bf16, wrong_if_strided=True),
    _cast_by_autocast("conv3d", wrong_in_bf16=wrong_in_bf16),
    _transposed("conv_transpose1d conv_transpose2d", wrong_in_bf16=is_wrong_transposed, wrong_if_strided=True),
    _transposed("conv_transpose3d", wrong_in_bf16=is_wrong_transposed),
    _convolution("convolution", wrong_in_bf16=_may_be_wrong, family=_ALL),
    _convolution("_convolution", wrong_in_bf16=_may_be_wrong, family=f"convolution {_ALL}"),
    _convolution("conv_tbc"),
)
