"""Numbers beyond the range of the lower precision saturate (rule 9)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from helpers.each import each
from helpers.lists import Converter
from helpers.probes import BF16, FP16, FP32, INDEX, SQUARE, M

SMALLEST, LARGEST = torch.finfo(FP32).min, torch.finfo(FP32).max
SATURATING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "masked_fill": lambda x: x.masked_fill(x > 0.5, SMALLEST),
    "masked_fill_": lambda x: x.masked_fill_(x > 0.5, SMALLEST),
    "masked_fill by keyword": lambda x: torch.masked_fill(x, mask=x > 0.5, value=LARGEST),
    "masked_fill with a tensor": lambda x: x.masked_fill(x > 0.5, torch.tensor(SMALLEST)),
    "full_like": lambda x: torch.full_like(x, SMALLEST),
    "new_full": lambda x: x.new_full((2, 2), LARGEST),
    "fill_": lambda x: x.fill_(SMALLEST),
    "torch.fill": lambda x: torch.fill(x, SMALLEST),
    "index_fill": lambda x: x.index_fill(0, INDEX[:2], SMALLEST),
    "scatter": lambda x: x.scatter(0, SQUARE, SMALLEST),
    "scatter_": lambda x: x.scatter_(0, SQUARE, LARGEST),
    "F.pad": lambda x: F.pad(x, (1, 1), value=SMALLEST),
    "clamp": lambda x: x.clamp(SMALLEST, LARGEST),
    "clamp by keyword": lambda x: torch.clamp(x, min=SMALLEST, max=LARGEST),
    "clamp_min": lambda x: torch.clamp_min(x, SMALLEST),
    "clip": lambda x: x.clip(SMALLEST, LARGEST),
    "F.hardtanh": lambda x: F.hardtanh(x, SMALLEST, LARGEST),
    "F.threshold": lambda x: F.threshold(x, 0.5, SMALLEST),
    "fill_diagonal_": lambda x: x.fill_diagonal_(SMALLEST),
    "index_put": lambda x: x.index_put((INDEX,), torch.tensor(SMALLEST)),
    "torch.where": lambda x: torch.where(x > 0.5, x, SMALLEST),
    "Tensor.where": lambda x: x.where(x > 0.5, SMALLEST),
}


@each("name", SATURATING)
@each("lower", [BF16, FP16])
def test_a_scalar_beyond_the_lower_precision_saturates(converted: Converter, name: str, lower: torch.dtype) -> None:
    x = M.to(lower)
    converted(dtype=lower)
    result = SATURATING[name](x)
    assert result.dtype is lower
    assert torch.isfinite(result).all()
    limit = torch.finfo(lower).max
    if "clamp" not in name and name not in {"clip", "F.hardtanh"}:
        assert result.abs().max() == limit


def test_a_bfloat16_number_beyond_float16_saturates(converted: Converter) -> None:
    x, number = M.half(), torch.tensor(-1e38, dtype=BF16)
    converted(dtype=FP16)
    result = x.masked_fill(x > 0.5, number)
    assert (result.dtype, result.min().item()) == (FP16, torch.finfo(FP16).min)


HIDDEN = torch.tensor([0.0, 1.0, 1.0, 0.0])
MASKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "x * number": lambda x: x * SMALLEST,
    "number * x": lambda x: SMALLEST * x,
    "torch.mul": lambda x: torch.mul(x, SMALLEST),
    "multiply": lambda x: x.multiply(other=SMALLEST),
    "x + number": lambda x: x + SMALLEST,
    "number + x": lambda x: SMALLEST + x,
    "x - number": lambda x: x - LARGEST,
    "number - x": lambda x: SMALLEST - x,
    "torch.rsub": lambda x: torch.rsub(x, SMALLEST),
}


@each("name", MASKS)
def test_a_mask_that_is_computed_in_bfloat16_stays_finite(converted: Converter, name: str) -> None:
    converted(bf16=["mul", "add", "sub"])
    for mask in (HIDDEN, HIDDEN.bfloat16()):
        result = MASKS[name](mask)
        assert result.dtype is BF16
        assert result[1] == torch.finfo(BF16).min
        assert torch.isfinite(result).all()
        assert result[0] == (0 if "*" in name or "mul" in name else torch.finfo(BF16).min)
    assert (HIDDEN * float("-inf"))[1] == float("-inf")
    scale = torch.tensor(SMALLEST, requires_grad=True)
    (HIDDEN * scale)[2].backward()
    assert scale.grad == 1


def test_a_product_in_float16_by_a_number_beyond_its_range_is_torchs(converted: Converter) -> None:
    converted(bf16=["mul"], dtype=FP16)
    assert (torch.tensor([0.01]) * 1e5).item() == 1000


def test_an_infinite_scalar_stays_infinite(converted: Converter) -> None:
    converted()
    assert M.bfloat16().masked_fill(M > 0.5, float("-inf")).min() == float("-inf")
