"""Inputs of several precisions, where no list speaks: the widest one decides (rule 2)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import hypothesis.strategies as st
import torch
import torch.nn.functional as F
from hypothesis import given

from habana_mp import hmp
from habana_mp.policy.presets import _shipped_presets
from helpers.cases import LATE_KERNELS
from helpers.comparing import assert_same
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import BF16, FP16, FP32, M, N

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
    "torch.addcmul": lambda a, b: torch.addcmul(a, b, b),
    "torch.addcdiv": lambda a, b: torch.addcdiv(b, a, b),
    "torch.lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "torch.lerp with a tensor": lambda a, b: torch.lerp(a, b, b),
    "torch.dist": torch.dist,
    "F.bilinear": lambda a, b: F.bilinear(a, b, torch.ones(2, 4, 4)),
    "F.mse_loss": F.mse_loss,
    "F.binary_cross_entropy": F.binary_cross_entropy,
    "F.triplet_margin_loss": lambda a, b: F.triplet_margin_loss(a, b, a),
    "torch.inner": torch.inner,
}


@each("name", WIDEST)
def test_mixed_inputs_go_to_the_widest_and_equal_ones_stay(converted: Converter, name: str) -> None:
    call, calls = WIDEST[name], []
    for kinds in ((BF16, FP32), (FP32, BF16), (BF16, FP16), (FP16, FP32)):
        a, b = M.to(kinds[0]), N.to(kinds[1])
        calls.append((a, b, call(a.float(), b.float())))
    a, b = M.bfloat16(), N.bfloat16()
    if name != "F.bilinear":
        try:
            calls.append((a, b, call(a, b)))
        except RuntimeError:
            assert name.removeprefix("F.") in LATE_KERNELS
            calls.append((a, b, call(a.float(), b.float())))
    converted()
    for a, b, expected in calls:
        assert_same(call(a, b), expected)


def test_a_list_of_many_tensors_goes_to_the_widest_among_them(converted: Converter) -> None:
    converted()
    assert torch.cat([M.bfloat16()] * 30 + [M] + [M.bfloat16()] * 30).dtype is FP32
    assert torch.cat([M.bfloat16()] * 30).dtype is BF16


#: Of the above, what torch computes with a tensor without dimensions as it does with a number.
WITH_A_NUMBER = (
    *("torch.add", "+", "-", "*", "/", "**", "%", "//", "Tensor.mul", "torch.maximum", "torch.atan2", "torch.where"),
    *("Tensor.where", "torch.addcmul", "torch.addcdiv"),
)


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


#: Operations of two tensors, of which one has no dimensions, by any preset in a list or in none. ``torch.hstack`` and
#: its like give it some first.
WITH_ONE_NUMBER: dict[str, Callable[..., torch.Tensor]] = {
    **{name: WIDEST[name] for name in (*WITH_A_NUMBER, "torch.inner", "torch.dist")},
    "F.cosine_similarity": lambda a, b: F.cosine_similarity(a, b, dim=0),
    "Tensor.inner": lambda a, b: a.inner(b),
    "torch.einsum": lambda a, b: torch.einsum("...,...->...", a, b),
    "torch.einsum of an outer product": lambda a, b: torch.einsum(f"{'i' * a.dim()},{'i' * b.dim()}->i", a, b),
    "torch.kron": torch.kron,
    "torch.block_diag": lambda a, b: torch.block_diag(a, b),
    "torch.block_diag of many": lambda a, b: torch.block_diag(a, a, b, b, a),
    "torch.lerp": lambda a, b: torch.lerp(a if a.dim() else b, b if a.dim() else a, 0.5),
    "torch.tensordot of no dimensions": lambda a, b: torch.tensordot(a, b, 0),
    "torch.fmax": lambda a, b: torch.fmax(a, b),
    "op_wrap": lambda a, b: hmp.op_wrap(lambda values: values[0] * values[1], to="widest")([a, b]),
}


@each("preset", [None, *list(_shipped_presets())[::4]])
def test_a_tensor_without_dimensions_widens_none_that_has_some_in_any_call_that_no_list_decides(
    converted: Converter, preset: str | None
) -> None:
    """Over operations, presets, dimensions and precisions. Calls that a list decides are left out, by the report."""
    if preset is None:
        converted()
    else:
        hmp.convert(preset=preset)
    wrong = []
    for (name, call), kinds, first in itertools.product(
        WITH_ONE_NUMBER.items(), itertools.permutations((BF16, FP16, FP32), 2), (False, True)
    ):
        vector, number = torch.full((3,), 0.5, dtype=kinds[0]), torch.tensor(0.3, dtype=kinds[1])
        inputs = (number, vector) if first else (vector, number)
        hmp.reset_report()
        result = call(*inputs)
        reasons = {row.reason for row in hmp.report().rows}
        if reasons <= {"widest", "no_product", "op_wrap"} and result.dtype is not kinds[0]:
            wrong.append((name, first, kinds, result.dtype))
        if preset is None and name in WITH_A_NUMBER:
            with hmp.disable_casts():
                assert_same(result, call(*inputs))
    assert wrong == []


JOINING: dict[str, Callable[..., torch.Tensor]] = {
    "torch.hstack": lambda a, b: torch.hstack([a, b]),
    "torch.vstack": lambda a, b: torch.vstack([a, b]),
    "torch.dstack": lambda a, b: torch.dstack([a, b]),
    "torch.column_stack": lambda a, b: torch.column_stack([a, b]),
    "torch.block_diag": torch.block_diag,
}


@each("name", JOINING)
@each("shapes", [*itertools.product([(), (1,)], repeat=2)])
def test_operations_that_join_tensors_promote_those_without_dimensions_as_torch_does(
    name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    for kinds in itertools.product((BF16, FP16, FP32), repeat=2):
        both = [torch.full(shape, 0.5, dtype=kind) for shape, kind in zip(shapes, kinds, strict=True)]
        expected = JOINING[name](*both)
        with hmp.autocast("cpu", preset="torch-cpu"):
            assert_same(JOINING[name](*both), expected)
