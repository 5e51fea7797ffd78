"""Inputs of several precisions, where no list speaks: the widest one decides (rule 2)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given

from habana_mp import hmp
from helpers.cases import LATE_KERNELS
from helpers.comparing import assert_same
from helpers.lists import Converter

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
M = torch.linspace(0.1, 0.9, 16).reshape(4, 4)
N = M.t().contiguous() * 0.7


WIDEST: dict[str, Callable[..., torch.Tensor]] = {
    "torch.add": torch.add,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "**": lambda a, b: a**b,
    "%": lambda a, b: a % b,
    "//": lambda a, b: a // b,
    "Tensor.mul": lambda a, b: a.mul(b),
    "torch.maximum": torch.maximum,
    "torch.atan2": torch.atan2,
    "torch.where": lambda a, b: torch.where(a > b, a, b),
    "Tensor.where": lambda a, b: a.where(a > b, b),
    "torch.cat": lambda a, b: torch.cat([a, b]),
    "torch.stack": lambda a, b: torch.stack((a, b)),
    "torch.hstack": lambda a, b: torch.hstack([a, b]),
    "torch.vstack": lambda a, b: torch.vstack([a, b]),
    "torch.addcmul": lambda a, b: torch.addcmul(a, b, b),
    "torch.addcdiv": lambda a, b: torch.addcdiv(b, a, b),
    "torch.lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "torch.lerp with a tensor": lambda a, b: torch.lerp(a, b, b),
    "torch.dot": lambda a, b: torch.dot(a[0], b[0]),
    "torch.outer": lambda a, b: torch.outer(a[0], b[0]),
    "torch.cross": lambda a, b: torch.cross(a[:, :3], b[:, :3], dim=1),
    "torch.tensordot": lambda a, b: torch.tensordot(a, b, 1),
    "torch.dist": torch.dist,
    "F.bilinear": lambda a, b: F.bilinear(a, b, torch.ones(2, 4, 4)),
    "F.mse_loss": F.mse_loss,
    "F.l1_loss": F.l1_loss,
    "F.smooth_l1_loss": F.smooth_l1_loss,
    "F.huber_loss": F.huber_loss,
    "F.binary_cross_entropy": F.binary_cross_entropy,
    "F.kl_div": lambda a, b: F.kl_div(a, b, reduction="sum"),
    "F.cosine_similarity": F.cosine_similarity,
    "F.poisson_nll_loss": F.poisson_nll_loss,
    "F.triplet_margin_loss": lambda a, b: F.triplet_margin_loss(a, b, a),
    "torch.meshgrid": lambda a, b: torch.meshgrid(a[0], b[0], indexing="ij")[0],
    "torch.block_diag": torch.block_diag,
    "torch.inner": torch.inner,
}


@pytest.mark.parametrize("name", WIDEST)
@pytest.mark.parametrize("kinds", [(BF16, FP32), (FP32, BF16), (BF16, FP16), (FP16, FP32)], ids=str)
def test_mixed_inputs_go_to_the_widest(converted: Converter, name: str, kinds: tuple[torch.dtype, torch.dtype]) -> None:
    a, b = M.to(kinds[0]), N.to(kinds[1])
    expected = WIDEST[name](a.float(), b.float())
    converted()
    result = WIDEST[name](a, b)
    assert result.dtype is FP32
    assert_same(result, expected)


@pytest.mark.parametrize("name", [name for name in WIDEST if name != "F.bilinear"])
def test_equal_lower_inputs_stay_lower_where_no_list_speaks(converted: Converter, name: str) -> None:
    a, b = M.bfloat16(), N.bfloat16()
    try:
        expected = WIDEST[name](a, b)
    except RuntimeError:
        assert name.removeprefix("F.") in LATE_KERNELS
        expected = WIDEST[name](a.float(), b.float())
    converted()
    assert_same(WIDEST[name](a, b), expected)


def test_a_list_of_many_tensors_goes_to_the_widest_among_them(converted: Converter) -> None:
    converted()
    assert torch.cat([M.bfloat16()] * 30 + [M] + [M.bfloat16()] * 30).dtype is FP32
    assert torch.cat([M.bfloat16()] * 30).dtype is BF16


#: Of the above, what torch computes with a tensor without dimensions as it does with a number.
WITH_A_NUMBER = (
    *("torch.add", "+", "-", "*", "/", "**", "%", "//", "Tensor.mul", "torch.maximum", "torch.atan2", "torch.where"),
    *("Tensor.where", "torch.addcmul", "torch.addcdiv"),
)


@pytest.mark.parametrize("name", WITH_A_NUMBER)
@pytest.mark.parametrize("number_first", [False, True], ids=["second", "first"])
@pytest.mark.parametrize("kinds", [*itertools.permutations((BF16, FP16, FP32), 2)], ids=str)
def test_a_tensor_without_dimensions_widens_none_that_has_some(
    converted: Converter, name: str, number_first: bool, kinds: tuple[torch.dtype, torch.dtype]
) -> None:
    matrix, number = M.to(kinds[0]), torch.tensor(0.3).to(kinds[1])
    inputs = (number, matrix) if number_first else (matrix, number)
    plain = WIDEST[name](*inputs)
    converted()
    result = WIDEST[name](*inputs)
    assert result.dtype is plain.dtype is kinds[0]
    assert_same(result, plain)


@given(data=st.data())
def test_any_mixture_of_tensors_and_numbers_has_the_dtype_that_torch_promotes_to(data: st.DataObject) -> None:
    kind = st.sampled_from([BF16, FP32])
    shape = st.sampled_from([(), (1,), (3,), (2, 3)])
    inputs = [torch.full(data.draw(shape), 0.5, dtype=data.draw(kind)) for _ in range(3)]
    with_dimensions = [one for one in inputs if one.dim()] or inputs
    promoted = functools.reduce(torch.promote_types, [one.dtype for one in with_dimensions])
    with hmp.autocast("cpu", preset="torch-cpu"):
        assert torch.addcmul(*inputs).dtype is promoted
        assert torch.where(torch.ones(2, 3) > 0, *inputs[:2]).dtype is torch.result_type(*inputs[:2])


def test_a_gate_without_dimensions_leaves_a_stream_in_its_precision() -> None:
    gate = torch.tensor(0.25, requires_grad=True)
    stream, branch = M.bfloat16().requires_grad_(), N.bfloat16()
    (stream + gate * branch).float().sum().backward()
    expected = gate.grad.clone()
    gate.grad = None
    hmp.convert(preset="torch-cpu")
    result = stream + gate * branch
    assert result.dtype is BF16
    result.float().sum().backward()
    assert gate.grad.dtype is FP32
    assert torch.equal(gate.grad, expected)
    assert torch.lerp(stream, branch, gate).dtype is BF16  # which torch takes in one precision only
    assert (gate * torch.tensor(1.0, dtype=BF16)).dtype is FP32  # no dimensions at all
