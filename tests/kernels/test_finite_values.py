"""The check whether values are finite: by the core, or by torch where the core does not read them."""

from __future__ import annotations

import math

import torch

from habana_mp import _core
from habana_mp.reporting.judging import worst_of
from helpers.each import each

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
BAD = {math.inf: 1, -math.inf: 1, math.nan: 2, -math.nan: 2}


def views_of(values: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns views that have all values of a tensor of 6 x 10 x 14."""
    return {
        "contiguous": values,
        "transposed": values.transpose(0, 2),
        "expanded": values[:, None].expand(-1, 3, -1, -1),
        "in steps": torch.stack([values, torch.ones_like(values)], -1)[..., 0],
        "rows": torch.cat([values, torch.ones_like(values)], -1)[..., :14],
        "columns": torch.cat([values, torch.ones_like(values)], 1)[:, :10].transpose(1, 2),
    }


@each("dtype", DTYPES)
@each("name", views_of(torch.zeros(6, 10, 14)))
def test_one_bad_value_is_found_wherever_it_is(dtype: torch.dtype, name: str) -> None:
    numbers = torch.randn(6, 10, 14).to(dtype)
    numbers.view(-1)[:2] = torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=dtype)
    assert worst_of([views_of(numbers)[name]]) == 0
    for place in (0, 1, 139, 400, 839):
        for bad, expected in BAD.items():
            values = numbers.clone()
            values.view(-1)[place] = bad
            assert worst_of([views_of(values)[name]]) == expected, (place, bad)


@each("dtype", DTYPES)
@each("count", [0, 1, 31, 32, 63, 64, 65, 100_001])
def test_the_last_value_is_read(dtype: torch.dtype, count: int) -> None:
    values = torch.full((count,), -1.0, dtype=dtype)
    assert worst_of([values]) == 0
    if count:
        values[-1] = math.nan
        assert worst_of([values]) == 2


def test_samples_of_a_large_tensor_reach_its_end() -> None:
    values = torch.zeros(1 << 20)
    values[-1] = math.nan
    assert _core.worst_value(values, False) == 2


def test_the_first_bad_gradient_is_found() -> None:
    weights = [torch.zeros(3, requires_grad=True) for _ in range(4)]
    weights[1].grad, weights[3].grad = torch.ones(3), torch.tensor([0, math.inf, 0])
    assert _core.worst_gradient(weights[:3]) == -1
    assert _core.worst_gradient(weights) == 3
