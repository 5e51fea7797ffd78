"""Operations whose other inputs follow the first one (rule 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from helpers.comparing import assert_same
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import BF16, FP32, INDEX, SQUARE, M, N

_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def _heads(*matrices: torch.Tensor) -> list[torch.Tensor]:
    return [one[None, None] for one in matrices]


FIRST: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "F.linear": F.linear,
    "F.linear with bias": lambda x, y: F.linear(x, y, y[0]),
    "F.linear by keyword": lambda x, y: torch._C._nn.linear(weight=y, input=x),
    "torch.mm by keyword": lambda x, y: torch.mm(mat2=y, input=x),
    "@": lambda x, y: x @ y,
    "F.conv2d": lambda x, y: F.conv2d(x[None, None], y[None, None]),
    "F.layer_norm": lambda x, y: F.layer_norm(x, (4,), y[0], y[1]),
    "F.prelu": lambda x, y: F.prelu(x, y[0, :1]),
    "F.scaled_dot_product_attention": lambda x, y: F.scaled_dot_product_attention(x[None], y[None], y[None]),
    "torch._scaled_dot_product_flash_attention_for_cpu": lambda x, y: (
        torch._scaled_dot_product_flash_attention_for_cpu(*_heads(x, y, y))
    ),
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": lambda x, y: _ATTENTION(*_heads(x, y, y)),
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu by keyword": lambda x, y: _ATTENTION(
        **dict(zip(("value", "key", "query"), _heads(y, y, x), strict=True))
    ),
    "torch.index_add": lambda x, y: torch.index_add(x, 0, INDEX, y),
    "torch.scatter_add": lambda x, y: torch.scatter_add(x, 0, SQUARE, y),
    "torch.scatter_add by keyword": lambda x, y: torch.scatter_add(src=y, index=SQUARE, dim=0, input=x),
    "nn.LSTM": lambda x, y: torch._VF.lstm(
        x[None],
        (y[None, :1, :2].contiguous(), y[None, :1, :2].contiguous()),
        _lstm(y),
        True,
        1,
        0.0,
        False,
        False,
        True,
    )[0],
}


def _lstm(y: torch.Tensor) -> list[torch.Tensor]:
    return [torch.full((8, 4), 0.125, dtype=y.dtype), torch.full((8, 2), 0.25, dtype=y.dtype)] + [
        torch.zeros(8, dtype=y.dtype) for _ in range(2)
    ]


@each("name", FIRST)
@each("kinds", [(BF16, FP32), (FP32, BF16)])
def test_the_other_inputs_follow_the_first(
    converted: Converter, name: str, kinds: tuple[torch.dtype, torch.dtype]
) -> None:
    x, y = M.to(kinds[0]), N.to(kinds[1])
    kept = name == "F.layer_norm" and kinds[0] is not FP32  # a CPU's kernel takes these in float32
    expected = FIRST[name](x, y if kept else y.to(kinds[0]))
    if name == "torch.index_add":
        expected = FIRST[name](x.float(), y.float()).to(kinds[0])
    converted()
    assert_same(FIRST[name](x, y), expected)


ACCEPTED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "torch.clamp": lambda x, y: torch.clamp(x, min=y),
    "torch.clamp_min": torch.clamp_min,
    "torch.clamp_max": torch.clamp_max,
    "torch.addr": lambda x, y: torch.addr(x, y[0], y[1]),
    "torch.eq": torch.eq,
    "torch.lt": torch.lt,
    "torch.logical_and": torch.logical_and,
    "Tensor.copy_": lambda x, y: x.clone().copy_(y),
    "Tensor.type_as": lambda x, y: x.type_as(y),
    "Tensor.to": lambda x, y: x.to(y),
    "torch.searchsorted": lambda x, y: torch.searchsorted(y[0].sort()[0], x.to(y.dtype)),
    "F.embedding": lambda x, y: F.embedding(INDEX, x),
}


@each("name", ACCEPTED)
@each("kinds", [(BF16, FP32), (FP32, BF16)])
def test_a_mixture_that_torch_accepts_is_left_alone(
    converted: Converter, name: str, kinds: tuple[torch.dtype, torch.dtype]
) -> None:
    x, y = M.to(kinds[0]), N.to(kinds[1])
    expected = ACCEPTED[name](x, y)
    converted()
    assert_same(ACCEPTED[name](x, y), expected)


@pytest.mark.parametrize("kinds", [(BF16, FP32), (FP32, BF16)], ids=str)
@pytest.mark.parametrize("of_mask", [BF16, FP32], ids=str)
def test_the_mask_of_attentions_own_operator_is_not_lowered(
    converted: Converter, kinds: tuple[torch.dtype, torch.dtype], of_mask: torch.dtype
) -> None:
    x, y = M.to(kinds[0]), N.to(kinds[1])
    mask = torch.linspace(-8, 8, 16).reshape(4, 4).to(of_mask)
    taken = mask.to(torch.promote_types(kinds[0], of_mask))
    expected = _ATTENTION(*_heads(x, y.to(kinds[0]), y.to(kinds[0])), attn_mask=taken[None, None])
    converted()
    assert_same(_ATTENTION(*_heads(x, y, y), attn_mask=mask[None, None]), expected)
