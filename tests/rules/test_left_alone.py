"""What is never cast: other dtypes, indices and masks, calls with `out` or `dtype` (rule 6)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.lists import Converter
from helpers.probes import INDEX, SQUARE, M, N

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64


def test_one_float64_among_the_inputs_leaves_the_call_to_torch(converted: Converter) -> None:
    converted(bf16=["mul", "mm", "cat"])
    assert torch.mul(M, M.double()).dtype is FP64
    assert torch.cat([M, M.double()]).dtype is FP64
    with pytest.raises(RuntimeError):
        torch.mm(M, M.double())


COMPLEX = {one for one in vars(torch).values() if isinstance(one, torch.dtype) and one.is_complex}


@pytest.mark.parametrize("dtype", sorted(COMPLEX, key=str), ids=str)
def test_one_complex_tensor_among_the_inputs_leaves_the_call_alone(converted: Converter, dtype: torch.dtype) -> None:
    converted()
    dtypes_of = hmp.op_wrap(lambda a, b: (a.dtype, b.dtype), BF16)
    assert dtypes_of(M, torch.zeros(2, dtype=dtype)) == (FP32, dtype)
    assert dtypes_of(M, M) == (BF16, BF16)


def test_a_complex_number_among_the_inputs_leaves_the_call_alone(converted: Converter) -> None:
    converted(bf16=["mul", "add"])
    phase = torch.linspace(0, 300, 8)
    for result in (lambda: 1j * phase, lambda: phase * 1j, lambda: torch.add(phase, 2j)):
        with hmp.disable_casts():
            expected = result()
        assert torch.equal(result(), expected)
    assert torch.add(phase, phase).dtype is BF16


def test_indices_and_masks_beside_a_cast_input_stay_what_they_are(converted: Converter) -> None:
    converted(bf16=["embedding", "masked_fill", "gather", "where", "cross_entropy"])
    assert F.embedding(INDEX, M).dtype is BF16
    assert M.masked_fill(M > 0.5, 0).dtype is BF16
    assert M.gather(0, SQUARE).dtype is BF16
    assert torch.where(M > 0.5, M, N).dtype is BF16
    assert F.cross_entropy(M, INDEX).dtype is BF16


@pytest.mark.parametrize("out", [FP32, BF16, FP64], ids=str)
def test_a_call_with_out_is_left_alone(converted: Converter, out: torch.dtype) -> None:
    place = torch.empty(4, 4, dtype=out)
    expected = torch.add(M, N, out=torch.empty(4, 4, dtype=out))
    converted(bf16=["add", "mm"])
    assert torch.add(M, N, out=place) is place
    assert_same(place, expected)
    assert torch.mm(M, N, out=torch.empty(4, 4)).dtype is FP32
    assert torch.add(M, N, out=None).dtype is BF16


def test_a_call_with_a_dtype_is_left_alone_by_keyword_and_by_position(converted: Converter) -> None:
    calls: list[Callable[[], torch.Tensor]] = [
        lambda: torch.softmax(M, -1, dtype=FP64),
        lambda: torch.softmax(M, -1, FP32),
        lambda: F.softmax(M, -1, dtype=FP32),
        lambda: M.softmax(-1, FP32),
        lambda: M.softmax(-1, dtype=FP32),
        lambda: torch.sum(M, dtype=FP32),
        lambda: M.sum(dtype=FP64),
        lambda: M.cumsum(0, dtype=FP32),
        lambda: torch.log_softmax(M, 0, FP32),
        lambda: torch.mean(M, dtype=FP64),
        lambda: torch.prod(M, dtype=FP32),
        lambda: torch.special.softmax(M, -1, dtype=FP32),
    ]
    expected = [call() for call in calls]
    converted(bf16=["softmax", "sum", "cumsum", "log_softmax", "mean", "prod"])
    assert_same([call() for call in calls], expected)
    assert F.softmax(M, -1, dtype=None).dtype is BF16
