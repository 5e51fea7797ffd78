"""The rules, operation by operation: what is cast, to what, and that the values are those of casting by hand."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import inspect
import itertools
import multiprocessing
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from cases import ADDED_UP, CASES, LATE_KERNELS, NO_KERNEL, VIEWS, WITHOUT_CASE, Case, cast
from conftest import Converter, assert_same, run_script, seeded, tensors
from hypothesis import given
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset

from habana_mp import HmpWarning, _operations, _presets, hmp

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
#: Their results differ from call to call in plain torch.
CLOSE = {"linalg_lstsq"}
M = torch.linspace(0.1, 0.9, 16).reshape(4, 4)
N = M.t().contiguous() * 0.7


@pytest.fixture(scope="module", autouse=True)
def quietly() -> Iterator[None]:
    """Torch warns about some of the older operations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


# ---- rule 1: the lists ---------------------------------------------------------------------------------------------


def test_every_shipped_name_has_a_case_or_a_reason() -> None:
    named = {case.name for case in CASES + VIEWS}
    here = {name for name in _presets.shipped_names() if _operations.resolve(name) is not None}
    assert here <= named | set(WITHOUT_CASE)


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in NO_KERNEL], ids=str)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
def test_an_operation_of_the_lower_list_equals_casting_by_hand(
    converted: Converter, case: Case, dtype: torch.dtype
) -> None:
    try:
        expected = case.run(case.cast(dtype))
    except RuntimeError:
        is_known = dtype is FP16 or case.name in LATE_KERNELS
        assert is_known, "an operation without a bfloat16 kernel belongs to NO_KERNEL"
        expected = case.run()
    if case.name in ADDED_UP:
        expected = cast(case.run(), dtype)
    converted(bf16=[case.name], dtype=dtype)
    assert_same(case.run(), expected, close=case.name in CLOSE)


@pytest.mark.parametrize("case", [case for case in CASES if case.name in NO_KERNEL], ids=str)
def test_an_operation_without_a_kernel_runs_in_float32_whatever_the_list_says(converted: Converter, case: Case) -> None:
    expected = case.run()
    converted(bf16=[case.name])
    assert_same(case.run(), expected, close=case.name in CLOSE)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_operation_of_the_float32_list_equals_casting_by_hand(converted: Converter, case: Case) -> None:
    lowered = case.cast(BF16, everything=case.name != "batch_norm")
    expected = Case("", "", case.call, lowered).run(Case("", "", case.call, lowered).cast(FP32))
    converted(fp32=[case.name])
    assert_same(case.run(lowered), expected, close=case.name in CLOSE)


def differing(given: list[tuple[Case, tuple[Any, ...], Any]]) -> dict[str, str]:
    """The cases whose result is not the expected one."""
    failed = {}
    for case, inputs, expected in given:
        try:
            assert_same(case.run(inputs), expected, close=case.name in CLOSE)
        except (AssertionError, RuntimeError) as error:
            failed[str(case)] = str(error).splitlines()[0][:100]
    return failed


def test_operations_in_no_list_are_left_to_their_inputs(converted: Converter) -> None:
    given = [(case, case.inputs, case.run()) for case in CASES]
    converted()
    assert differing(given) == {}


def test_lower_inputs_of_operations_in_no_list_give_what_torch_gives(converted: Converter) -> None:
    given = []
    for case in CASES:
        if case.name not in NO_KERNEL:
            with contextlib.suppress(RuntimeError) if case.name in LATE_KERNELS else contextlib.nullcontext():
                given.append((case, case.cast(BF16), case.run(case.cast(BF16))))
    converted()
    assert differing(given) == {}


@pytest.mark.parametrize("case", [case for case in CASES if case.form == "module"][::3], ids=str)
def test_modules_train_through_the_casts_as_by_hand(converted: Converter, case: Case) -> None:
    module = next((one for one in case.inputs if isinstance(one, nn.Module)), None)
    if module is None or case.name in {"embedding", "embedding_bag"}:
        module = nn.Linear(4, 4)
        call: Callable[[], Any] = lambda: module(M)  # noqa: E731
    else:
        call = case.run
    converted(bf16=[case.name, "linear"] if case.name != "linear" else ["linear"])
    sum(one.float().sum() for one in tensors(call())).backward()
    grads = [parameter.grad for parameter in module.parameters()]
    assert grads
    assert all(grad is not None and grad.dtype is FP32 for grad in grads)


def test_gradients_equal_those_of_casts_by_hand(converted: Converter) -> None:
    x, w = M.clone().requires_grad_(), N.clone().requires_grad_()
    torch.mm(x.bfloat16(), w.bfloat16()).float().pow(2).sum().backward()
    expected = x.grad, w.grad
    x.grad = w.grad = None
    converted(bf16=["mm"])
    torch.mm(x, w).float().pow(2).sum().backward()
    assert_same((x.grad, w.grad), expected)


def test_views_and_strides_are_cast_by_value(converted: Converter) -> None:
    base = torch.randn(6, 8)
    views = [base.t(), base[1:, 2:], base[::2], base[:, 3], base.flip(0), base.expand(2, 6, 8), base[:0], base[2, 3]]
    expected = [torch.exp(view.bfloat16()) for view in views]
    imaginary = torch.randn(4, dtype=torch.complex64).conj().imag
    expected.append(torch.exp(imaginary.bfloat16()))
    converted(bf16=["exp"])
    assert_same([torch.exp(view) for view in views] + [torch.exp(imaginary)], expected)


def test_special_values_are_cast_as_by_hand(converted: Converter) -> None:
    x = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, 3.4e38, -3.4e38, 1.00390625])
    expected = torch.relu(x.bfloat16()), torch.neg(x.bfloat16())
    converted(bf16=["relu", "neg"])
    for result, wanted in zip((torch.relu(x), torch.neg(x)), expected, strict=True):
        number = ~wanted.isnan()
        assert torch.equal(result.isnan(), ~number)
        assert torch.equal(result[number].view(torch.int16), wanted[number].view(torch.int16))


@pytest.mark.parametrize("name", ["clamp", "pow", "masked_fill", "pad", "hardtanh", "threshold", "scatter"])
def test_infinities_in_a_tensor_stay_infinite_where_scalars_saturate(converted: Converter, name: str) -> None:
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "clamp": lambda x: torch.clamp(x, min=0),
        "pow": lambda x: x**3,
        "masked_fill": lambda x: x.masked_fill(x == 0, 1.0),
        "pad": lambda x: F.pad(x, (1, 1)),
        "hardtanh": lambda x: F.hardtanh(x, 0, float("inf")),
        "threshold": lambda x: F.threshold(x, -float("inf"), 1),
        "scatter": lambda x: x.scatter(0, torch.tensor([1]), 5.0),
    }
    x = torch.tensor([float("inf"), 0.0, -float("inf"), 2.0])
    expected = calls[name](x.bfloat16())
    converted(bf16=[name])
    assert_same(calls[name](x), expected)


# ---- rule 2: the widest --------------------------------------------------------------------------------------------

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


# ---- rule 3: in place ----------------------------------------------------------------------------------------------

_INDEX = torch.tensor([3, 1, 0, 2])
_SQUARE = _INDEX[None].expand(4, 4)

IN_PLACE: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add_": lambda x, y: x.add_(y),
    "sub_": lambda x, y: x.sub_(y),
    "mul_": lambda x, y: x.mul_(y),
    "div_": lambda x, y: x.div_(y),
    "pow_": lambda x, y: x.pow_(y),
    "remainder_": lambda x, y: x.remainder_(y),
    "atan2_": lambda x, y: x.atan2_(y),
    "copysign_": lambda x, y: x.copysign_(y),
    "lerp_": lambda x, y: x.lerp_(y, 0.25),
    "addcmul_": lambda x, y: x.addcmul_(y, y),
    "addcdiv_": lambda x, y: x.addcdiv_(y, y),
    "addmm_": lambda x, y: x.addmm_(y, y),
    "addbmm_": lambda x, y: x.addbmm_(y[None], y[None]),
    "addr_": lambda x, y: x.addr_(y[0], y[1]),
    "index_add_": lambda x, y: x.index_add_(0, _INDEX, y),
    "index_copy_": lambda x, y: x.index_copy_(0, _INDEX, y),
    "index_put_": lambda x, y: x.index_put_((_INDEX,), y),
    "index_fill_": lambda x, y: x.index_fill_(0, _INDEX[:2], y[0, 0]),
    "index_reduce_": lambda x, y: x.index_reduce_(0, _INDEX, y, "prod"),
    "scatter_": lambda x, y: x.scatter_(0, _SQUARE, y),
    "scatter_add_": lambda x, y: x.scatter_add_(0, _SQUARE, y),
    "scatter_reduce_": lambda x, y: x.scatter_reduce_(0, _SQUARE, y, "sum"),
    "masked_scatter_": lambda x, y: x.masked_scatter_(_SQUARE > 1, y),
    "masked_fill_": lambda x, y: x.masked_fill_(_SQUARE > 1, y[0, 0]),
    "put_": lambda x, y: x.put_(_INDEX, y[0]),
    "fill_": lambda x, y: x.fill_(y[0, 0]),
    "clamp_": lambda x, y: x.clamp_(min=y),
    "xlogy_": lambda x, y: x.xlogy_(y),
    "hypot_": lambda x, y: x.hypot_(y),
    "+=": lambda x, y: x.__iadd__(y),
    "-=": lambda x, y: x.__isub__(y),
    "*=": lambda x, y: x.__imul__(y),
    "/=": lambda x, y: x.__itruediv__(y),
    "**=": lambda x, y: x.__ipow__(y),
    "//=": lambda x, y: x.__ifloordiv__(y),
    "%=": lambda x, y: x.__imod__(y),
    "x[1:] =": lambda x, y: x.__setitem__(slice(1, 3), y[:2]),
    "x[index] =": lambda x, y: x.__setitem__(_INDEX, y),
    "x[mask] =": lambda x, y: x.__setitem__(_SQUARE > 1, y[:2].flatten()),
    "x[...] =": lambda x, y: x.__setitem__(Ellipsis, y),
    "torch.relu_": lambda x, y: torch.relu_(x),
    "F.relu(inplace)": lambda x, y: F.relu(x, inplace=True),
    "F.leaky_relu(inplace)": lambda x, y: F.leaky_relu(x, inplace=True),
    "F.silu(inplace)": lambda x, y: F.silu(x, inplace=True),
    "F.elu(inplace)": lambda x, y: F.elu(x, inplace=True),
    "F.hardtanh(inplace)": lambda x, y: F.hardtanh(x, 0.2, 0.5, inplace=True),
    "F.relu6(inplace)": lambda x, y: F.relu6(x, inplace=True),
    "F.threshold(inplace)": lambda x, y: F.threshold(x, 0.5, 0.1, inplace=True),
    "F.dropout(inplace)": lambda x, y: F.dropout(x, 0.5, inplace=True),
    "F.dropout2d(inplace)": lambda x, y: F.dropout2d(x[None], 0.5, inplace=True),
    "nn.ReLU(inplace)": lambda x, y: nn.ReLU(inplace=True)(x),
    "nn.Dropout(inplace)": lambda x, y: nn.Dropout(0.5, inplace=True)(x),
}

LISTED_IN_PLACE = [
    "iadd",
    "isub",
    "imul",
    "itruediv",
    "relu",
    "leaky_relu",
    "silu",
    "elu",
    "hardtanh",
    "relu6",
    "threshold",
    "dropout",
    "dropout2d",
    "add",
    "mul",
    "sub",
    "div",
    "pow",
    "addmm",
    "addcmul",
    "addcdiv",
    "index_add",
    "index_copy",
    "index_put",
    "index_fill",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "masked_fill",
    "lerp",
    "masked_scatter",
    "add_",
    "mul_",
    "relu_",
    "dropout_",
    "addbmm",
    "addr",
    "__setitem__",
    "remainder",
    "atan2",
    "put",
    "fill_",
    "xlogy",
    "hypot",
]


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("kinds", [(FP32, BF16), (BF16, FP32), (FP32, FP32)], ids=str)
@pytest.mark.parametrize("listed", ["", "bf16", "fp32"])
@pytest.mark.filterwarnings("ignore:.*has no effect")
def test_an_in_place_operation_keeps_dtype_identity_and_storage(
    converted: Converter, name: str, kinds: tuple[torch.dtype, torch.dtype], listed: str
) -> None:
    x, y = M.to(kinds[0]), N.to(kinds[1])
    expected = x.clone()
    torch.manual_seed(5)
    IN_PLACE[name](expected, y.to(kinds[0]))
    target = x.clone()
    address = target.data_ptr()
    converted(**({listed: LISTED_IN_PLACE} if listed else {}))
    torch.manual_seed(5)
    result = IN_PLACE[name](target, y)
    assert target.dtype is kinds[0]
    assert target.data_ptr() == address
    assert torch.equal(target, expected)
    if result is not None:
        assert result is target or result.data_ptr() == address
        assert result.dtype is kinds[0]


def test_augmented_assignment_keeps_the_object(converted: Converter) -> None:
    converted(bf16=["iadd", "add", "mul", "truediv"])
    x = before = M.clone()
    x += N.bfloat16()
    x *= N.bfloat16()
    x /= N.bfloat16()
    x -= N.bfloat16()
    assert x is before
    assert x.dtype is FP32


def test_a_gradient_flows_through_an_assignment_of_another_precision(converted: Converter) -> None:
    converted(bf16=["mm"])
    w = N.clone().requires_grad_()
    x = torch.zeros(4, 4)
    x[_INDEX] = torch.mm(M, w)
    x.sum().backward()
    assert w.grad is not None
    assert w.grad.dtype is FP32


def test_an_integer_target_is_left_to_torch(converted: Converter) -> None:
    converted(bf16=["iadd", "mul"])
    x = torch.arange(4)
    x[1:3] = torch.tensor([7.0, 8.0])
    assert x.tolist() == [0, 7, 8, 3]
    with pytest.raises(RuntimeError, match="result type"):
        x += torch.ones(4)


# ---- rule 4: the first input ---------------------------------------------------------------------------------------

FIRST: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "F.linear": F.linear,
    "F.linear with bias": lambda x, y: F.linear(x, y, y[0]),
    "F.linear by keyword": lambda x, y: torch._C._nn.linear(weight=y, input=x),
    "torch.mm": torch.mm,
    "torch.mm by keyword": lambda x, y: torch.mm(mat2=y, input=x),
    "@": lambda x, y: x @ y,
    "torch.matmul": torch.matmul,
    "torch.bmm": lambda x, y: torch.bmm(x[None], y[None]),
    "torch.bmm by keyword": lambda x, y: torch.bmm(mat2=y[None], input=x[None]),
    "torch.mv": lambda x, y: torch.mv(x, y[0]),
    "torch.addmm": lambda x, y: torch.addmm(x, y, y),
    "torch.baddbmm": lambda x, y: torch.baddbmm(x[None], y[None], y[None]),
    "torch.einsum": lambda x, y: torch.einsum("ij,jk->ik", x, y),
    "F.conv1d": lambda x, y: F.conv1d(x[None], y[:, :, None]),
    "F.conv2d": lambda x, y: F.conv2d(x[None, None], y[None, None]),
    "F.conv_transpose2d": lambda x, y: F.conv_transpose2d(x[None, None], y[None, None]),
    "F.layer_norm": lambda x, y: F.layer_norm(x, (4,), y[0], y[1]),
    "F.rms_norm": lambda x, y: F.rms_norm(x, (4,), y[0]),
    "F.prelu": lambda x, y: F.prelu(x, y[0, :1]),
    "F.scaled_dot_product_attention": lambda x, y: F.scaled_dot_product_attention(x[None], y[None], y[None]),
    "torch.index_add": lambda x, y: torch.index_add(x, 0, _INDEX, y),
    "torch.index_copy": lambda x, y: torch.index_copy(x, 0, _INDEX, y),
    "torch.index_put": lambda x, y: torch.index_put(x, (_INDEX,), y),
    "torch.scatter": lambda x, y: torch.scatter(x, 0, _SQUARE, y),
    "torch.scatter_add": lambda x, y: torch.scatter_add(x, 0, _SQUARE, y),
    "torch.scatter_add by keyword": lambda x, y: torch.scatter_add(src=y, index=_SQUARE, dim=0, input=x),
    "torch.scatter_reduce": lambda x, y: torch.scatter_reduce(x, 0, _SQUARE, y, "sum"),
    "torch.masked_scatter": lambda x, y: torch.masked_scatter(x, _SQUARE > 1, y),
    "torch.slice_scatter": lambda x, y: torch.slice_scatter(x, y[:2], 0, 0, 2),
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


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("kinds", [(BF16, FP32), (FP32, BF16), (FP16, FP32)], ids=str)
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
    "F.embedding": lambda x, y: F.embedding(_INDEX, x),
}


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("kinds", [(BF16, FP32), (FP32, BF16)], ids=str)
def test_a_mixture_that_torch_accepts_is_left_alone(
    converted: Converter, name: str, kinds: tuple[torch.dtype, torch.dtype]
) -> None:
    x, y = M.to(kinds[0]), N.to(kinds[1])
    expected = ACCEPTED[name](x, y)
    converted()
    assert_same(ACCEPTED[name](x, y), expected)


def test_batch_norm_of_a_float32_input_takes_lower_weights_along(converted: Converter) -> None:
    x = torch.randn(2, 4, 5)
    expected = F.batch_norm(x, torch.zeros(4), torch.ones(4), N[0].bfloat16().float(), N[1].bfloat16().float())
    converted()
    result = F.batch_norm(x, torch.zeros(4), torch.ones(4), N[0].bfloat16(), N[1].bfloat16())
    assert_same(result, expected)


# ---- rule 6: what is never cast ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FP64, torch.complex64, torch.int64, torch.int8, torch.bool], ids=str)
def test_other_dtypes_are_never_cast(converted: Converter, dtype: torch.dtype) -> None:
    x = (M * 3).to(dtype)
    calls: list[Callable[[], Any]] = [
        lambda: torch.mul(x, x),
        lambda: x + x if dtype is not torch.bool else x | x,
        lambda: torch.sum(x),
        lambda: torch.cat([x, x]),
        lambda: torch.t(x),
    ]
    if dtype not in (torch.int64, torch.int8, torch.bool):
        calls += [lambda: torch.mm(x, x), lambda: torch.exp(x), lambda: x @ x, lambda: F.linear(x, x)]
    expected = [call() for call in calls]
    for listed in ({"bf16": LOWER}, {"fp32": LOWER}):
        converted(**listed)
        assert_same([call() for call in calls], expected)
        hmp.restore()


LOWER = ["mm", "mul", "add", "sum", "cat", "t", "exp", "matmul", "linear", "softmax", "embedding"]


@pytest.mark.filterwarnings("ignore:.*has no effect")
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("case", VIEWS, ids=str)
def test_what_is_written_into_a_view_reaches_the_tensor(converted: Converter, case: Case, precision: str) -> None:
    converted(**{precision: [case.name]})
    for dtype in (FP32, BF16, FP16):
        x = case.cast(dtype)[0].clone()
        shape, strides = x.shape, x.stride()
        for view in tree_leaves(case.call(x)):
            assert view.dtype is dtype
            view.zero_()
        assert (x.shape, x.stride()) == (shape, strides)
        assert not x.any()


def test_what_is_written_into_a_view_in_complex_numbers_reaches_the_tensor(converted: Converter) -> None:
    converted()
    for dtype, of_view in ((FP32, torch.complex64), (FP16, torch.complex32), (BF16, torch.complex64)):
        x = torch.ones(4, 2, dtype=dtype)
        view = torch.view_as_complex(x)
        assert view.dtype is of_view
        view.zero_()
        assert x.any() == (dtype is BF16)  # that has no view


IN_PLACE_BY_KEYWORD: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "addmv_": lambda x, y: torch.addmv_(mat=y.expand(4, 4), vec=y, input=x),
    "clamp_": lambda x, y: torch.clamp_(min=y, input=x),
    "index_put_": lambda x, y: torch.index_put_(values=y, input=x, indices=(_INDEX,)),
    "dropout_": lambda x, y: torch.dropout_(train=False, p=0.5, input=x),
}


@pytest.mark.parametrize("dtypes", [(FP32, BF16), (BF16, FP32), (FP32, FP16)], ids=str)
@pytest.mark.parametrize("name", IN_PLACE_BY_KEYWORD)
def test_what_is_written_into_is_found_wherever_it_stands(
    converted: Converter, name: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    converted()
    target, other = torch.zeros(4, dtype=dtypes[0]), torch.ones(4, dtype=dtypes[1])
    result = IN_PLACE_BY_KEYWORD[name](target, other)
    assert result is target
    expected = IN_PLACE_BY_KEYWORD[name](torch.zeros(4), torch.ones(4))
    assert torch.equal(target, expected.to(dtypes[0]))


@pytest.mark.parametrize("keywords", [{"bias": N[0]}, {"bias": N[0], "weight": None}, {"bias": N[0], "weight": N[1]}])
def test_a_norm_by_keywords_in_any_order_has_gradients(
    converted: Converter, keywords: dict[str, torch.Tensor | None]
) -> None:
    def gradients(*, in_order: bool) -> list[torch.Tensor | None]:
        x = M.clone().requires_grad_()
        given: dict[str, Any] = {
            name: one if one is None else one.clone().requires_grad_() for name, one in keywords.items()
        }
        if in_order:
            result = torch.layer_norm(x, (4,), given.get("weight"), given["bias"])
        else:
            result = torch.layer_norm(x, (4,), **given)
        result.sum().float().backward()
        return [result.detach(), x.grad, *(None if one is None else one.grad for one in given.values())]

    converted(bf16=["layer_norm"])
    assert_same(gradients(in_order=False), gradients(in_order=True))


WITHOUT_KERNEL_IN_PYTHON: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "lu": lambda x: torch.lu(x)[0],
    "local_response_norm": lambda x: F.local_response_norm(x.expand(1, 4, 4, 4), 2),
    "lp_pool3d": lambda x: F.lp_pool3d(x.expand(1, 4, 4, 4), 2.0, 2),
}


@pytest.mark.parametrize("name", WITHOUT_KERNEL_IN_PYTHON)
def test_a_function_in_python_without_a_kernel_runs_in_float32(converted: Converter, name: str) -> None:
    call = WITHOUT_KERNEL_IN_PYTHON[name]
    expected = call(M)
    converted(bf16=[name])
    assert_same(call(M), expected)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_an_einsum_of_one_tensor_is_no_product(converted: Converter, precision: str) -> None:
    converted(**{precision: ["einsum"]})
    to, given = (BF16, M) if precision == "bf16" else (FP32, M.bfloat16())
    weight = nn.Parameter(given.clone())
    with torch.no_grad():
        torch.einsum("ii->i", weight).fill_(1)
        torch.einsum(weight, [0, 1], [1, 0])[0, 1] = 2
        assert torch.einsum("ij->", weight).dtype is given.dtype
    assert torch.equal(weight.diagonal(), torch.ones(4, dtype=given.dtype))
    assert weight[1, 0] == 2
    assert torch.einsum("ij,jk->ik", given, given).dtype is to
    assert torch.einsum("ij,j", [given, given[0]]).dtype is to


def test_a_weight_is_loaded_and_set_through_its_transposed_view() -> None:
    weight, new = nn.Parameter(torch.randn(4, 3)), torch.randn(3, 4)
    hmp.convert()
    with torch.no_grad():
        weight.t().copy_(new)
        assert torch.equal(weight, new.T)
        nn.init.eye_(weight.t())
        assert torch.equal(weight, torch.eye(4, 3))
    (torch.ones(2, 3) @ weight.t()).float().sum().backward()
    assert weight.grad is not None
    weight.grad.t()[0] += 1
    assert torch.equal(weight.grad, torch.tensor([[3.0, 2, 2]] * 4))


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_result_that_a_function_in_python_is_given_is_filled(converted: Converter, precision: str) -> None:
    calls: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
        lambda x, out: F.normalize(x, out=out),
        lambda x, out: F.normalize(x, 2.0, 1, 1e-12, out),
    ]
    converted(**{precision: ["normalize"]})
    for dtype, call in itertools.product((FP32, BF16), calls):
        x, out = M.to(dtype), torch.zeros(4, 4, dtype=dtype)
        assert call(x, out) is out
        with hmp.disable_casts():
            assert torch.equal(out, F.normalize(x))


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


def test_quantized_tensors_are_never_cast(converted: Converter) -> None:
    x = torch.quantize_per_tensor(M, 0.1, 0, torch.quint8)
    converted(bf16=["relu", "cat", "t"])
    assert torch.relu(x).dtype is torch.quint8
    assert x.t().dtype is torch.quint8


def test_indices_and_masks_beside_a_cast_input_stay_what_they_are(converted: Converter) -> None:
    converted(bf16=["embedding", "masked_fill", "gather", "where", "cross_entropy"])
    assert F.embedding(_INDEX, M).dtype is BF16
    assert M.masked_fill(M > 0.5, 0).dtype is BF16
    assert M.gather(0, _SQUARE).dtype is BF16
    assert torch.where(M > 0.5, M, N).dtype is BF16
    assert F.cross_entropy(M, _INDEX).dtype is BF16


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


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), (6, 4)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), (2, 4, 5, 5)),
    "BatchNorm2d without momentum": (lambda: nn.BatchNorm2d(4, momentum=None), (2, 4, 5, 5)),
    "BatchNorm3d without weights": (lambda: nn.BatchNorm3d(4, affine=False), (2, 4, 3, 3, 3)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (2, 4, 5, 5)),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_are_updated_in_place_in_float32(converted: Converter, name: str, training: bool) -> None:
    make, shape = NORMS[name]
    torch.manual_seed(1)
    module, by_hand, x = make().train(training), make().train(training), torch.randn(shape) * 3 + 1
    expected = [by_hand(x.bfloat16()), by_hand((x * 2).bfloat16())]
    addresses = [one.data_ptr() for one in module.buffers()]
    converted(bf16=["batch_norm", "instance_norm"])
    assert_same([module(x), module(x * 2)], expected)
    for (key, buffer), other in zip(module.named_buffers(), by_hand.buffers(), strict=True):
        assert torch.equal(buffer, other), key
        assert buffer.dtype is other.dtype
    assert [one.data_ptr() for one in module.buffers()] == addresses


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_of_a_lower_model_works_under_the_float32_list(converted: Converter, name: str) -> None:
    # model.bfloat16(): the statistics are state and stay; the call must work as it does without us.
    make, shape = NORMS[name]
    module, x = make().bfloat16(), torch.randn(shape).bfloat16()
    module(x)
    converted(fp32=["batch_norm", "instance_norm"])
    module(x)
    hmp.convert("O2")
    module(x)
    assert all(not buffer.is_floating_point() or buffer.dtype is BF16 for buffer in module.buffers())


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("training", [True, False])
def test_a_norm_of_a_lower_model_takes_what_the_lists_made_float32(
    converted: Converter, dtype: torch.dtype, training: bool
) -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Softmax(1), nn.BatchNorm1d(4)).to(dtype).train(training)
    by_hand, x = copy.deepcopy(module), torch.randn(5, 4).to(dtype)
    expected = by_hand[1](torch.softmax(x.float(), 1).to(dtype))
    for listed in (["softmax"], ["softmax", "batch_norm"]):
        ours = copy.deepcopy(module)
        converted(fp32=listed)
        assert_same(ours(x), expected)
        assert_same(list(ours.buffers()), list(by_hand.buffers()))
        hmp.restore()


@pytest.mark.parametrize(
    "module", [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.RMSNorm(4)], ids=lambda one: type(one).__name__
)
def test_a_norm_of_a_lower_model_runs_in_float32_under_the_float32_list(
    converted: Converter, module: nn.Module
) -> None:
    module = module.bfloat16()
    converted(fp32=["layer_norm", "group_norm", "rms_norm"])
    assert module(M.bfloat16()).dtype is FP32


def test_an_embedding_renormalises_its_float32_weight_in_place(converted: Converter) -> None:
    weight = N * 5
    by_hand = weight.clone()
    expected = F.embedding(_INDEX, by_hand, max_norm=1.0)
    bag_by_hand = weight.clone()
    F.embedding_bag(_INDEX[None], bag_by_hand, max_norm=1.0)
    converted(bf16=["embedding", "embedding_bag"])
    ours, bag = weight.clone(), weight.clone()
    result = F.embedding(_INDEX, ours, max_norm=1.0)
    F.embedding_bag(_INDEX[None], bag, max_norm=1.0)
    assert ours.dtype is FP32
    assert torch.equal(ours, by_hand)
    assert torch.equal(bag, bag_by_hand)
    assert torch.equal(result, expected.bfloat16())


# ---- rule 8: no kernel ---------------------------------------------------------------------------------------------


def test_operations_without_a_kernel_take_what_was_lowered(converted: Converter) -> None:
    given = []
    for case in CASES:
        if case.name in NO_KERNEL:
            lowered = Case(case.name, case.form, case.call, case.cast(BF16))
            given.append((case, lowered.inputs, lowered.run(lowered.cast(FP32))))
    converted()
    assert differing(given) == {}


@pytest.mark.parametrize(
    "made",
    [
        lambda x: torch.distributions.Gamma(x, x),
        lambda x: torch.distributions.Beta(x, x),
        lambda x: torch.distributions.Dirichlet(x),
        lambda x: torch.distributions.StudentT(x),
        lambda x: torch.distributions.Binomial(4, probs=x),
    ],
    ids=["Gamma", "Beta", "Dirichlet", "StudentT", "Binomial"],
)
def test_distributions_sample_from_what_was_lowered(converted: Converter, made: Callable[[torch.Tensor], Any]) -> None:
    x = torch.full((8,), 0.5, dtype=BF16)
    expected = seeded(lambda: made(x.float()).sample())
    converted()
    sample = seeded(lambda: made(x).sample())
    assert torch.allclose(sample.float(), expected, rtol=2**-7)


@pytest.mark.parametrize("distribution", ["Beta", "Dirichlet", "Gamma"])
def test_gradients_go_through_samples_of_what_was_lowered(converted: Converter, distribution: str) -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        made = getattr(torch.distributions, distribution)
        arguments = (x,) if distribution == "Dirichlet" else (x, x)
        seeded(lambda: made(*arguments).rsample()).float().pow(2).sum().backward()
        assert x.grad is not None
        return x.grad

    x = torch.full((8,), 1.5, dtype=BF16)
    expected = gradient(x.float())
    converted()
    assert torch.allclose(gradient(x).float(), expected, rtol=2**-5, atol=2**-7)


def test_what_was_lowered_is_quantized_as_it_would_be_in_float32(converted: Converter) -> None:
    calls: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        lambda x: torch.quantize_per_tensor(x, scale=0.1, zero_point=0, dtype=torch.qint8),
        lambda x: torch.quantize_per_channel(x, torch.full((4,), 0.1), torch.zeros(4), 0, torch.qint8),
        lambda x: torch.quantize_per_tensor_dynamic(x, torch.quint8, False),
    ]
    x = torch.linspace(-1, 1, 16).reshape(4, 4).bfloat16()
    expected = [call(x.float()).int_repr() for call in calls]
    converted()
    assert all(torch.equal(call(x).int_repr(), one) for call, one in zip(calls, expected, strict=True))
    assert {row.precision for row in hmp.report(show=False).rows if row.operation.startswith("quantize")} == {"fp32"}


@pytest.mark.parametrize("order", [2, -2, "nuc", "fro", 1, None])
def test_a_norm_without_a_kernel_is_computed_in_float32(converted: Converter, order: Any) -> None:
    x = torch.linspace(-1, 1, 16).reshape(4, 4).bfloat16()
    expected = torch.linalg.norm(x.float(), order)
    without_kernel = order in (2, -2, "nuc")
    converted()
    norm = torch.linalg.norm(x, order)
    assert norm.dtype is (FP32 if without_kernel else BF16)
    assert torch.allclose(norm.float(), expected, rtol=2**-7)


@pytest.mark.parametrize("lower", [BF16, FP16], ids=str)
def test_more_of_linalg_takes_what_was_lowered(converted: Converter, lower: torch.dtype) -> None:
    square = (torch.eye(4) * 3 + 0.25).to(lower)
    calls: dict[str, Callable[[torch.Tensor], Any]] = {
        "det": torch.det,
        "Tensor.det": lambda x: x.det(),
        "slogdet": torch.linalg.slogdet,
        "logdet": torch.logdet,
        "matrix_exp": torch.matrix_exp,
        "matrix_power": lambda x: torch.linalg.matrix_power(x, -1),
        "pinv": torch.linalg.pinv,
        "lu": torch.linalg.lu,
        "lu_factor": torch.linalg.lu_factor,
        "ldl_factor": torch.linalg.ldl_factor,
        "solve_triangular": lambda x: torch.linalg.solve_triangular(x, x, upper=True),
        "matrix_norm": lambda x: torch.linalg.matrix_norm(x, 2),
        "torch.lu": lambda x: torch.lu(x)[0],
        "svd_lowrank": lambda x: torch.svd_lowrank(x, 2)[1].float() * 0,
        "fftshift of fft": lambda x: torch.fft.fftshift(torch.fft.fft(x)),
        "istft": lambda x: torch.stft(x.flatten(), 4, window=torch.ones(4), return_complex=True),
        "histc": lambda x: torch.histc(x.float()),
        "histogram": lambda x: torch.histogram(x, 3)[0],
        "bessel_j0": torch.special.bessel_j0,
        "zeta": lambda x: torch.special.zeta(x + 2, x + 1),
        "antialias": lambda x: F.interpolate(x[None, None], scale_factor=0.5, mode="bilinear", antialias=True),
        "rrelu": lambda x: torch.rrelu(x, 0.1, 0.1),
    }
    converted(dtype=lower)
    failed = {}
    for name, call in calls.items():
        try:
            call(square)
        except RuntimeError as error:
            failed[name] = str(error)[:100]
    assert failed == {}


def test_the_log_says_that_there_is_no_kernel(converted: Converter, tmp_path: Path) -> None:
    log = tmp_path / "casts.jsonl"
    converted(bf16=["mm"], log=log)
    torch.fft.fft(torch.mm(M, M))
    hmp.restore()
    assert "no kernel" in log.read_text()


# ---- rule 8: what adds up ------------------------------------------------------------------------------------------

_FIRST_PLACE = torch.zeros(1000, dtype=torch.long)

#: What picks the first of three rows, or its first value, a thousand times.
_PICKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "[index]": lambda e: e[_FIRST_PLACE],
    "[index, 0]": lambda e: e[_FIRST_PLACE, 0],
    "[:, index]": lambda e: e[:, _FIRST_PLACE],
    "[list]": lambda e: e[[0] * 1000],
    "[array]": lambda e: e[_FIRST_PLACE.numpy()],
    "__getitem__": lambda e: e.__getitem__(_FIRST_PLACE),
    "[index] of a view": lambda e: e[:, 0][_FIRST_PLACE],
    "[index] of [index]": lambda e: e[_FIRST_PLACE[:1]][_FIRST_PLACE],
    "torch.index_select": lambda e: torch.index_select(e[:, 0], 0, _FIRST_PLACE),
    "Tensor.index_select": lambda e: e[:, 0].index_select(dim=0, index=_FIRST_PLACE),
    "take": lambda e: e.take(_FIRST_PLACE),
    "gather": lambda e: e[:, 0].gather(0, _FIRST_PLACE),
    "repeat_interleave": lambda e: e[:, 0].repeat_interleave(torch.tensor([1000, 1, 1])),
    "embedding": lambda e: F.embedding(_FIRST_PLACE, e),
    "embedding_bag": lambda e: F.embedding_bag(_FIRST_PLACE[:, None], e, mode="sum"),
}


@pytest.mark.parametrize("name", _PICKS)
def test_the_gradient_of_a_lookup_of_what_was_lowered_adds_up_in_float32(converted: Converter, name: str) -> None:
    weight = torch.nn.Parameter(torch.ones(3, 8))
    converted(bf16=["mul"])
    lowered = weight * 1
    picked = _PICKS[name](lowered)
    picked.float().sum().backward()
    assert picked.dtype is BF16
    assert weight.grad is not None
    assert weight.grad.max() == 1000


@pytest.mark.parametrize("name", [name for name in _PICKS if name not in ("gather", "embedding_bag")])
def test_the_gradient_of_a_lookup_of_ones_own_bfloat16_is_torchs(converted: Converter, name: str) -> None:
    def gradient() -> torch.Tensor:
        weight = torch.nn.Parameter(torch.ones(3, 8, dtype=BF16))
        picked = _PICKS[name](weight)
        picked.float().sum().backward()
        assert weight.grad is not None
        return weight.grad

    expected = gradient()
    converted(bf16=["mul"])
    assert_same(gradient(), expected)


@pytest.mark.parametrize("name", ["embedding", "embedding_bag"])
@pytest.mark.parametrize("lower", [BF16, FP16], ids=str)
def test_the_gradient_of_a_weight_that_a_list_lowers_for_a_lookup_adds_up_in_float32(
    converted: Converter, name: str, lower: torch.dtype
) -> None:
    weight = torch.nn.Parameter(torch.rand(3, 8))
    converted(bf16=[name], dtype=lower)
    picked = _PICKS[name](weight)
    assert picked.dtype is lower
    assert torch.equal(picked, weight.detach()[_FIRST_PLACE].to(lower))
    picked.float().sum().backward()
    assert weight.grad is not None
    assert weight.grad.max() == 1000


_SUMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "torch.index_add": lambda zeros, ones: torch.index_add(zeros, 0, _FIRST_PLACE, ones),
    "Tensor.index_add": lambda zeros, ones: zeros.index_add(0, _FIRST_PLACE, source=ones),
    "index_put": lambda zeros, ones: zeros.index_put((_FIRST_PLACE,), ones, accumulate=True),
    "torch.index_put": lambda zeros, ones: torch.index_put(zeros, (_FIRST_PLACE,), ones, True),
    "put": lambda zeros, ones: zeros.put(_FIRST_PLACE, ones, accumulate=True),
    "scatter_add": lambda zeros, ones: zeros.scatter_add(0, _FIRST_PLACE, ones),
}


@pytest.mark.parametrize("name", _SUMS)
@pytest.mark.parametrize("recorded", [False, True])
def test_what_was_lowered_is_summed_by_index_in_float32(converted: Converter, name: str, recorded: bool) -> None:
    ones = torch.ones(1000, requires_grad=recorded)
    zeros = torch.zeros(3, dtype=BF16)
    converted(bf16=["mul"])
    for source in (ones * 1, ones):  # lowered by a list, and to be lowered by rule 4
        if name == "scatter_add" and source is ones:
            continue
        result = _SUMS[name](zeros, source)
        assert result.dtype is BF16
        assert result[0] == 1000


def test_ones_own_bfloat16_is_summed_by_index_as_torch_does(converted: Converter) -> None:
    zeros, ones = torch.zeros(3, dtype=BF16), torch.ones(1000, dtype=BF16)
    expected = {name: call(zeros, ones) for name, call in _SUMS.items()}
    converted(bf16=["mul"])
    for name, call in _SUMS.items():
        assert_same(call(zeros, ones), expected[name])


def test_indexing_that_picks_nothing_twice_is_not_cast(converted: Converter, tmp_path: Path) -> None:
    log = tmp_path / "casts.jsonl"
    weight = torch.nn.Parameter(torch.ones(4, 4))
    converted(bf16=["mul"], log=log)
    lowered = weight * 1
    _ = lowered[0], lowered[1:], lowered[..., 0], lowered[None], lowered[0, 1], lowered[torch.tensor(1)]
    _ = lowered[lowered > 2], lowered[:, [True, False, True, False]], lowered.detach()[_FIRST_PLACE]
    hmp.restore()
    assert '"getitem"' not in log.read_text("utf-8")


def test_the_log_says_that_a_lookups_gradient_adds_up(converted: Converter, tmp_path: Path) -> None:
    log = tmp_path / "casts.jsonl"
    weight = torch.nn.Parameter(torch.ones(4, 4))
    converted(bf16=["mul"], log=log)
    _ = (weight * 1)[_FIRST_PLACE]
    hmp.restore()
    assert '"reason": "sums"' in log.read_text("utf-8")


def test_a_lookup_of_what_was_lowered_is_differentiated_twice(converted: Converter) -> None:
    weight = torch.nn.Parameter(torch.full((3, 2), 2.0))
    converted(bf16=["mul"])
    picked = (weight * weight)[_FIRST_PLACE]
    (first,) = torch.autograd.grad(picked.float().sum(), weight, create_graph=True)
    assert first[0, 0] == 4000
    first.sum().backward()
    assert weight.grad is not None
    assert weight.grad[0, 0] == 2000


def test_a_compiled_lookup_of_what_was_lowered_adds_up_in_float32(converted: Converter) -> None:
    weight = torch.nn.Parameter(torch.ones(3, 8))
    converted(bf16=["mul"])
    compiled = torch.compile(lambda w: (w * 1)[_FIRST_PLACE].float().sum(), backend="aot_eager")
    compiled(weight).backward()
    assert weight.grad is not None
    assert weight.grad.max() == 1000


def test_a_lookup_in_a_region_adds_up_in_float32() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 8))
    with hmp.autocast("cpu"):
        picked = torch.mm(torch.eye(3), weight)[_FIRST_PLACE]
        assert picked.dtype is BF16
    picked.float().sum().backward()
    assert weight.grad is not None
    assert weight.grad.max() == 1000


# ---- rule 9: scalars -----------------------------------------------------------------------------------------------

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
    "index_fill": lambda x: x.index_fill(0, _INDEX[:2], SMALLEST),
    "scatter": lambda x: x.scatter(0, _SQUARE, SMALLEST),
    "scatter_": lambda x: x.scatter_(0, _SQUARE, LARGEST),
    "F.pad": lambda x: F.pad(x, (1, 1), value=SMALLEST),
    "clamp": lambda x: x.clamp(SMALLEST, LARGEST),
    "clamp by keyword": lambda x: torch.clamp(x, min=SMALLEST, max=LARGEST),
    "clamp_min": lambda x: torch.clamp_min(x, SMALLEST),
    "clip": lambda x: x.clip(SMALLEST, LARGEST),
    "F.hardtanh": lambda x: F.hardtanh(x, SMALLEST, LARGEST),
    "F.threshold": lambda x: F.threshold(x, 0.5, SMALLEST),
    "fill_diagonal_": lambda x: x.fill_diagonal_(SMALLEST),
    "index_put": lambda x: x.index_put((_INDEX,), torch.tensor(SMALLEST)),
}


@pytest.mark.parametrize("name", SATURATING)
@pytest.mark.parametrize("lower", [BF16, FP16], ids=str)
def test_a_scalar_beyond_the_lower_precision_saturates(converted: Converter, name: str, lower: torch.dtype) -> None:
    x = M.to(lower)
    converted(dtype=lower)
    result = SATURATING[name](x)
    assert result.dtype is lower
    assert torch.isfinite(result).all()
    limit = torch.finfo(lower).max
    if "clamp" not in name and name not in {"clip", "F.hardtanh"}:
        assert result.abs().max() == limit


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


@pytest.mark.parametrize("name", MASKS)
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


@pytest.mark.parametrize("lower", [BF16, FP16], ids=str)
def test_a_number_that_where_chooses_saturates(converted: Converter, lower: torch.dtype) -> None:
    converted(dtype=lower)
    x = M.to(lower)
    assert torch.where(x > 0.5, x, SMALLEST).min() == torch.finfo(lower).min
    assert x.where(x > 0.5, SMALLEST).min() == torch.finfo(lower).min


@pytest.mark.parametrize("lower", [BF16, FP16], ids=str)
def test_an_assigned_scalar_beyond_the_lower_precision_saturates(converted: Converter, lower: torch.dtype) -> None:
    scores = M.to(lower)
    converted(dtype=lower)
    scores[scores > 0.5] = SMALLEST
    assert torch.isfinite(scores).all()


def test_an_infinite_scalar_stays_infinite(converted: Converter) -> None:
    converted()
    assert M.bfloat16().masked_fill(M > 0.5, float("-inf")).min() == float("-inf")


def test_a_scalar_beyond_float32_raises_as_in_torch(converted: Converter) -> None:
    with pytest.raises(RuntimeError):
        M.bfloat16().masked_fill(M > 0.5, 1e300)
    converted()
    with pytest.raises(RuntimeError):
        M.bfloat16().masked_fill(M > 0.5, 1e300)


def test_a_saturating_operation_may_be_in_the_lower_list(converted: Converter) -> None:
    converted(bf16=["clamp", "clip", "masked_fill", "hardtanh", "full_like", "threshold", "pad"])
    assert torch.equal(M.clamp(0.2, 0.6), M.bfloat16().clamp(0.2, 0.6))
    assert F.hardtanh(M, 0.2, 0.6).dtype is BF16
    assert M.masked_fill(M > 0.5, SMALLEST).min() == torch.finfo(BF16).min
    assert F.pad(M, (1, 1), value=SMALLEST).min() == torch.finfo(BF16).min


@pytest.mark.parametrize("preset", ["hmp-default", "torch-cuda", "xpu-amp-bf16", "hpu-autocast"])
def test_kernels_that_cannot_be_relied_on_get_float32(preset: str) -> None:
    """The sampler reads beside larger images, the others add up in the lower precision."""
    hmp.convert(preset=preset)
    image = torch.rand(1, 4, 200, 200).bfloat16().requires_grad_()
    grid = F.affine_grid(torch.eye(2, 3)[None], [1, 4, 200, 200], align_corners=True).bfloat16()
    sampled = F.grid_sample(image, grid, align_corners=True)
    sampled.float().sum().backward()
    expected = F.grid_sample(image.float(), grid.float(), align_corners=True)
    assert sampled.dtype is FP32
    assert torch.equal(sampled, expected)
    assert image.grad is not None
    assert torch.isfinite(image.grad).all()
    video = torch.full((1, 1, 32, 64, 64), 0.25).bfloat16()
    assert F.adaptive_avg_pool3d(video, (2, 1, 1)).flatten().tolist() == [0.25, 0.25]
    assert torch.histc(torch.full((5000,), 0.5).bfloat16(), 1, 0, 1).item() == 5000


@pytest.mark.parametrize("preset", ["hmp-guide-o1", "hmp-guide-o2", "resnet50", "gaudi/nlp/bert", "listed in bf16"])
def test_a_loss_of_logits_that_would_cancel_in_lower_precision_runs_in_float32(
    converted: Converter, preset: str
) -> None:
    if preset == "listed in bf16":
        converted(bf16=["binary_cross_entropy_with_logits"])
    else:
        hmp.convert(preset=preset)
    logits = torch.linspace(-20, 20, 801).bfloat16().requires_grad_()
    exact = logits.detach().double().requires_grad_()
    for target in (torch.zeros(801), torch.ones(801), torch.full((801,), 0.5)):
        logits.grad = exact.grad = None
        loss = F.binary_cross_entropy_with_logits(logits, target.bfloat16(), reduction="none")
        expected = F.binary_cross_entropy_with_logits(exact, target.double(), reduction="none")
        assert loss.dtype is FP32
        torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
        loss.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=2**-8, atol=1e-7)


def test_what_does_not_follow_its_parts_is_as_exact_as_one_rounding() -> None:
    """That is why the default lists leave attention and `logsumexp` in lower precision, with `softmax` and `log` in the
    float32 list."""
    torch.manual_seed(0)
    query = torch.randn(1, 4, 200, 32).bfloat16()
    wide = (torch.randn(64, 30000) * 2).bfloat16()
    expected = F.scaled_dot_product_attention(query.float(), query.float(), query.float())
    expected_sum = torch.logsumexp(wide.float(), -1)
    hmp.convert()
    torch.testing.assert_close(
        F.scaled_dot_product_attention(query, query, query), expected.bfloat16(), rtol=2**-7, atol=2**-8
    )
    torch.testing.assert_close(torch.logsumexp(wide, -1), expected_sum.bfloat16(), rtol=2**-7, atol=0)


def test_attention_with_a_mask_of_the_smallest_float_is_finite(converted: Converter) -> None:
    mask = torch.zeros(1, 4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), SMALLEST)
    hmp.convert()
    out = F.scaled_dot_product_attention(M[None].bfloat16(), N[None].bfloat16(), M[None].bfloat16(), attn_mask=mask)
    assert torch.isfinite(out).all()


# ---- rule 10: autocast(enabled=False) ------------------------------------------------------------------------------


def is_cast() -> bool:
    return torch.mm(M, N).dtype is BF16


@pytest.mark.parametrize("device", ["cpu", "cuda", "xpu", "hpu", "meta"])
def test_nothing_is_cast_where_autocast_is_disabled(converted: Converter, device: str) -> None:
    converted(bf16=["mm", "normalize"], fp32=["exp"])
    try:
        region = torch.autocast(device, enabled=False)
    except RuntimeError:
        assert device == "meta", "torch knows no autocast for this device"
        region = torch.autocast("cpu", enabled=False)
    with region:
        assert not is_cast()
        assert F.normalize(M).dtype is FP32
        assert torch.exp(M.bfloat16()).dtype is BF16
    assert is_cast()


@pytest.mark.filterwarnings("ignore:torch.autocast is enabled")
def test_autocast_regions_nest(converted: Converter) -> None:
    converted(bf16=["mm"])
    with torch.autocast("cpu", enabled=False):
        with torch.autocast("cpu", enabled=True, dtype=BF16):
            assert is_cast()
            with torch.autocast("cpu", enabled=False):
                assert not is_cast()
            assert is_cast()
        assert not is_cast()
        with torch.autocast("cpu", enabled=False):
            assert not is_cast()
        assert not is_cast()
    assert is_cast()


def test_an_exception_leaves_the_autocast_region(converted: Converter) -> None:
    converted(bf16=["mm"])
    with pytest.raises(KeyError), torch.autocast("cpu", enabled=False), torch.autocast("cpu", enabled=False):
        raise KeyError
    assert is_cast()


def test_autocast_disabled_works_as_a_decorator(converted: Converter) -> None:
    converted(bf16=["mm"])
    decorated = torch.autocast("cpu", enabled=False)(is_cast)
    assert not decorated()
    assert is_cast()


def test_autocast_disabled_holds_for_its_thread_only(converted: Converter) -> None:
    converted(bf16=["mm"])
    seen = []
    with torch.autocast("cpu", enabled=False):
        thread = threading.Thread(target=lambda: seen.append(is_cast()))
        thread.start()
        thread.join()
        assert not is_cast()
    assert seen == [True]


def test_convert_inside_a_disabled_region_obeys_it(converted: Converter) -> None:
    with torch.autocast("cpu", enabled=False):
        converted(bf16=["mm"])
        assert not is_cast()
    assert is_cast()


def test_restore_inside_a_disabled_region_leaves_nothing_behind(converted: Converter) -> None:
    converted(bf16=["mm"])
    with torch.autocast("cpu", enabled=False):
        hmp.restore()
    converted(bf16=["mm"])
    assert is_cast()


def test_convert_inside_a_disabled_region_replaces_without_forgetting_it(converted: Converter) -> None:
    converted(bf16=["exp"])
    with torch.autocast("cpu", enabled=False):
        converted(bf16=["mm"])
        assert not is_cast()
    assert is_cast()


@pytest.mark.filterwarnings("ignore:torch.autocast is enabled")
def test_many_regions_in_each_other_are_left_as_they_were_entered(converted: Converter) -> None:
    converted(bf16=["mm"])
    with torch.autocast("cpu", enabled=False):
        with contextlib.ExitStack() as regions:
            for _ in range(80):
                regions.enter_context(torch.autocast("cpu", dtype=BF16))
        assert not is_cast()
    assert is_cast()


PROTECTED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "product": lambda x, y: x @ y,
    "layer": F.linear,
    "batch": lambda x, y: torch.bmm(x[None], y[None]),
    "convolution": lambda x, y: F.conv2d(x[None, None], y[None, None]),
    "attention": lambda x, y: F.scaled_dot_product_attention(x[None], y[None], y[None]),
    "sum of products": lambda x, y: torch.einsum("ij,jk->ik", x, y),
    "no kernel": lambda x, _: torch.fft.rfft(x).abs(),
}


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
@pytest.mark.parametrize("name", PROTECTED)
def test_a_block_that_protects_itself_takes_what_was_lowered_outside(name: str, backend: str | None) -> None:
    def protected(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return PROTECTED[name](x, N)

    x = M.bfloat16().requires_grad_()
    expected = PROTECTED[name](x.float(), N)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    hmp.convert()
    result = (protected if backend is None else torch.compile(protected, backend=backend))(x)
    assert torch.equal(result, expected)
    assert torch.equal(torch.autograd.grad(result.sum(), x)[0], gradient)


def test_without_lists_in_force_a_block_that_protects_itself_is_torchs_own() -> None:
    with hmp.autocast("cpu"):
        torch.mm(M, N)
    with torch.autocast("cpu", enabled=False), pytest.raises(RuntimeError, match="BFloat16"):
        torch.mm(M.bfloat16(), N)


def test_a_compiled_block_without_casts_leaves_one_that_protects_itself_as_it_was() -> None:
    @torch.compile(backend="eager")
    def without(x: torch.Tensor) -> torch.Tensor:
        with hmp.disable_casts():
            y = torch.mm(x, x)
            torch._dynamo.graph_break()
            return torch.mm(y, x)

    hmp.convert()
    with torch.autocast("cpu", enabled=False):
        assert without(M).dtype is FP32
        assert torch.mm(M.bfloat16(), N).dtype is FP32
    assert is_cast()


def test_what_torch_refuses_for_another_reason_stays_its_error_in_a_block_that_protects_itself() -> None:
    x = M.bfloat16()
    hmp.convert()
    with torch.autocast("cpu", enabled=False):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.mm(x, torch.ones(3, 3))
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.mm(M, torch.ones(3, 3))
        with pytest.raises(RuntimeError, match="BFloat16"):
            torch.mm(x, N, out=torch.empty(4, 4))
    with hmp.disable_casts(), pytest.raises(RuntimeError, match="BFloat16"):
        torch.mm(x, N)


# ---- rule 11: construction -----------------------------------------------------------------------------------------


class Made(nn.Module):
    """Computes its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.mm(M, N))


class Derived(Made):
    """A chain of classes, with more to compute at each end."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.mm(M, N)[0])
        self.child = Made()
        self.register_buffer("table", torch.mm(N, M))


class Nested(nn.Module):
    """Computes between and after its children."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Derived()
        self.between = nn.Parameter(torch.mm(M, N))
        self.rest = nn.ModuleList([Made(), nn.Linear(2, 2)])
        self.after = nn.Parameter(torch.mm(M, N))
        self.forwarded = nn.Parameter(self.rest[1](torch.ones(1, 2)).detach())


class Capturing(nn.Module):
    """Has its self in a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.me = lambda: self
        self.weight = nn.Parameter(torch.mm(M, N))


class OldStyle(nn.Module):
    """Names its base class and its first parameter in its own way."""

    def __init__(this, size: int = 4) -> None:  # noqa: N805
        nn.Module.__init__(this)
        this.weight = nn.Parameter(torch.mm(M, N)[:size])


class ByKeyword(nn.Module):
    """Takes anything."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.mm(M, N))


def remembering(init: Callable[..., None]) -> Callable[..., None]:
    """A decorator as transformers and Lightning put around ``__init__``; it computes afterwards too."""

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.added = nn.Parameter(torch.mm(M, N))

    return wrapper


class Decorated(nn.Module):
    """Its ``__init__`` is a wrapper around the one written here."""

    @remembering
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.mm(M, N))


class Tupled(nn.Module):
    """Uses the wrapper of a decorator whose parameters are all packed."""

    def _plain(*args: Any) -> None:
        nn.Module.__init__(args[0])
        args[0].weight = nn.Parameter(torch.mm(M, N))

    __init__ = _plain


@pytest.mark.parametrize(
    "kind",
    [Made, Derived, Nested, Capturing, OldStyle, ByKeyword, Decorated, Tupled],
    ids=lambda kind: kind.__name__,
)
def test_nothing_is_cast_while_a_module_is_constructed(converted: Converter, kind: type[nn.Module]) -> None:
    converted(bf16=["mm", "linear"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HmpWarning)
        module = kind()
    lowered = [name for name, value in module.state_dict().items() if value.dtype is not FP32]
    assert lowered == []
    assert is_cast()


def test_a_method_called_by_init_casts_nothing(converted: Converter) -> None:
    class Resetting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reset()

        def reset(self) -> None:
            self.weight = nn.Parameter(torch.mm(M, N))

    converted(bf16=["mm"])
    module = Resetting()
    assert module.weight.dtype is FP32


def test_casts_are_back_after_a_construction_that_raised(converted: Converter) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = Made()
            assert not is_cast()
            raise KeyError

    converted(bf16=["mm"])
    for _ in range(3):
        with pytest.raises(KeyError):
            Broken()
        assert is_cast()
        assert Made().weight.dtype is FP32
        assert is_cast()


def test_a_module_made_inside_of_forward_does_not_stop_the_casts_around_it(converted: Converter) -> None:
    class Lazy(nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.dtype]:
            seen = [torch.mm(x, x).dtype]
            nn.Softmax(-1)
            Made()
            seen.append(torch.mm(x, x).dtype)
            return seen

    converted(bf16=["mm"])
    assert Lazy()(M) == [BF16, BF16]


def test_construction_in_one_thread_does_not_stop_the_casts_of_another(converted: Converter) -> None:
    inside, done, seen = threading.Event(), threading.Event(), []

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            inside.set()
            done.wait(10)
            seen.append(is_cast())

    converted(bf16=["mm"])
    thread = threading.Thread(target=Slow)
    thread.start()
    inside.wait(10)
    assert is_cast()
    done.set()
    thread.join()
    assert seen == [False]


def test_a_module_whose_construction_is_suspended_does_not_stop_the_casts_outside(converted: Converter) -> None:
    def parts() -> Iterator[bool]:
        class Part(nn.Module):
            def __init__(self) -> None:
                super().__init__()

        Part()
        yield is_cast()

    converted(bf16=["mm"])
    assert list(parts()) == [True]


# ---- rule 11: optimizer steps --------------------------------------------------------------------------------------


class Probing(torch.optim.SGD):
    """Tells whether casts are on inside its step."""

    def __init__(self, parameters: Any, fail: bool = False) -> None:
        super().__init__(parameters, lr=0.1)
        self.seen: list[bool] = []
        self.fail = fail

    def step(self, closure: Any = None) -> Any:
        self.seen.append(is_cast())
        if closure is not None:
            with torch.enable_grad():
                closure()
        self.seen.append(is_cast())
        if self.fail:
            raise KeyError
        return None


def parameter() -> nn.Parameter:
    made = nn.Parameter(torch.ones(4, 4))
    made.grad = torch.full((4, 4), 0.5)
    return made


def test_nothing_is_cast_inside_a_step(converted: Converter) -> None:
    before = Probing([parameter()])
    converted(bf16=["mm"])
    for optimizer in (before, Probing([parameter()])):
        optimizer.step()
        assert optimizer.seen == [False, False]
        assert is_cast()


@pytest.mark.parametrize("keyword", [False, True])
def test_a_closure_is_the_models_and_is_cast(converted: Converter, keyword: bool) -> None:
    converted(bf16=["mm"])
    optimizer = Probing([parameter()])
    inside: list[bool] = []

    def closure() -> None:
        inside.append(is_cast())

    if keyword:
        optimizer.step(closure=closure)
    else:
        optimizer.step(closure)
    assert inside == [True]
    assert optimizer.seen == [False, False]
    assert is_cast()


def test_a_closure_that_raises_leaves_the_state_right(converted: Converter) -> None:
    converted(bf16=["mm"])

    def closure() -> None:
        raise KeyError

    optimizer = Probing([parameter()])
    with pytest.raises(KeyError):
        optimizer.step(closure)
    assert is_cast()
    optimizer.seen.clear()
    optimizer.step()
    assert optimizer.seen == [False, False]


def test_a_step_that_raises_leaves_casts_on(converted: Converter) -> None:
    converted(bf16=["mm"])
    for _ in range(2):
        optimizer = Probing([parameter()], fail=True)
        with pytest.raises(KeyError):
            optimizer.step()
        assert optimizer.seen == [False, False]
        assert is_cast()


def test_a_step_that_calls_another_optimizers_step_stays_without_casts(converted: Converter) -> None:
    class Outer(Probing):
        def step(self, closure: Any = None) -> Any:
            self.seen.append(is_cast())
            inner.step()
            self.seen.append(is_cast())

    converted(bf16=["mm"])
    inner = Probing([parameter()])
    outer = Outer([parameter()])
    outer.step()
    assert inner.seen == [False, False]
    assert outer.seen == [False, False]
    assert is_cast()


def class_in_front() -> Any:
    """Of optimizers that stand in front of another one, and do not call torch's constructor."""

    class InFront(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner
            self.seen: list[bool] = []

        @property
        def param_groups(self) -> Any:
            return self.inner.param_groups

        def step(self, closure: Any = None) -> Any:
            self.seen.append(is_cast())
            for group in self.param_groups:
                for one in group["params"]:
                    one.grad = one.grad * (1.3 / (one.grad.norm(2) + 1e-6)) + 0.001
            loss = self.inner.step(closure)
            self.seen.append(is_cast())
            return loss

    return InFront


def derived_class_in_front() -> Any:
    class Derived(class_in_front()):  # type: ignore[misc]  # made anew
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner)

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            self.seen.append(is_cast())
            return super().step(closure)

    return Derived


IN_FRONT = {"of its own": class_in_front, "derived and decorated": derived_class_in_front}


@pytest.mark.parametrize("name", IN_FRONT)
@pytest.mark.parametrize("when", ["before convert", "after convert"])
@pytest.mark.parametrize("closed", ["no closure", "a closure", "a closure by its name"])
def test_the_step_of_an_optimizer_that_torchs_constructor_never_saw_is_one(name: str, when: str, closed: str) -> None:
    def stepped(make: Any) -> torch.Tensor:
        weight = parameter()
        optimizer = make(torch.optim.SGD([weight], lr=0.1))
        for _ in range(3):
            given = () if closed == "no closure" else (closure,)
            named = {"closure": given[0]} if closed == "a closure by its name" else {}
            optimizer.step(*(() if named else given), **named)
        assert not any(optimizer.seen)
        assert len(optimizer.seen) > 5
        return weight.detach()

    def closure() -> float:
        inside.append(is_cast())
        return 1.0

    inside: list[bool] = []
    expected = stepped(IN_FRONT[name]())
    make = IN_FRONT[name]() if when == "before convert" else None
    inside.clear()
    hmp.convert()
    result = stepped(make or IN_FRONT[name]())
    assert torch.equal(result, expected)
    assert all(inside)
    assert len(inside) == (0 if closed == "no closure" else 3)
    assert is_cast()


def test_such_a_step_that_raises_leaves_casts_on() -> None:
    class Failing(class_in_front()):  # type: ignore[misc]  # made anew
        def step(self, closure: Any = None) -> Any:
            super().step()
            raise KeyError

    hmp.convert()
    optimizer = Failing(torch.optim.SGD([parameter()], lr=0.1))
    with pytest.raises(KeyError):
        optimizer.step()
    assert optimizer.seen == [False, False]
    assert is_cast()


def test_restore_leaves_nothing_of_ours_in_such_optimizers() -> None:
    made = class_in_front()
    code = made.step.__code__
    hmp.convert()
    assert made.step.__code__ is not code
    later = class_in_front()
    hmp.restore()
    assert made.step.__code__ is code
    assert later.step.__code__ is code
    assert "__init_subclass__" not in vars(torch.optim.Optimizer)
    alive = [weakref.ref(made), weakref.ref(later)]
    del made, later
    gc.collect()
    assert [one() for one in alive] == [None, None]


def test_an_optimizer_that_torch_constructs_is_left_to_torchs_own_wrapper() -> None:
    class WithOptions(torch.optim.SGD):
        def __init_subclass__(cls, **options: Any) -> None:
            super().__init_subclass__()
            cls.options = options

    hmp.convert()

    class Mine(WithOptions, speed=3):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, lr=0.1)

        def step(self, closure: Any = None) -> Any:
            return is_cast()

    assert Mine.options == {"speed": 3}
    assert "return is_cast()" in inspect.getsource(Mine.step)
    assert "habana_mp._steps" not in Mine.step.__code__.co_names
    assert Mine([parameter()]).step() is False
    with pytest.raises(TypeError, match="takes no keyword arguments"):
        type("Wrong", (torch.optim.SGD,), {}, speed=3)


OPTIMIZERS = ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "NAdam", "RAdam", "Rprop", "ASGD", "Adamax"]


@pytest.mark.parametrize("name", [*OPTIMIZERS, "LBFGS"])
def test_an_optimizer_steps_in_float32_bit_by_bit(name: str) -> None:
    def train(closure_too: bool) -> list[torch.Tensor]:
        weight = nn.Parameter(M.clone())
        optimizer = getattr(torch.optim, name)([weight])

        def closure() -> torch.Tensor:
            weight.grad = torch.cos(weight.detach())
            return torch.tensor(1.0)

        for _ in range(3):
            closure()
            optimizer.step(closure) if closure_too else optimizer.step()
        state = optimizer.state[weight]
        return [weight.detach(), *(one for one in state.values() if isinstance(one, torch.Tensor))]

    expected = train(name == "LBFGS")
    hmp.convert()
    assert_same(train(name == "LBFGS"), expected)


def test_disable_casts_around_a_step_stays_valid() -> None:
    hmp.convert()
    optimizer = Probing([parameter()])
    with hmp.disable_casts():
        optimizer.step()
    assert optimizer.seen == [False, False]
    assert is_cast()


def test_a_scheduler_and_a_scaler_around_the_step_change_nothing(converted: Converter) -> None:
    converted(bf16=["mm"])
    optimizer = Probing([parameter()])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    scaler.scale(torch.tensor(1.0))
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    assert optimizer.seen == [False, False]
    assert is_cast()


# ---- rule 11: DataLoader workers -----------------------------------------------------------------------------------


class Products(Dataset[torch.Tensor]):
    """Items that are computed by a covered operation."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.mm(M, N)


def test_nothing_is_cast_in_forked_workers(converted: Converter) -> None:
    converted(bf16=["mm"])
    loader = DataLoader(Products(), batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert [item.dtype for item in loader] == [FP32] * 3
    assert is_cast()


SPAWNED = """
import torch
from torch.utils.data import DataLoader, Dataset
from habana_mp import hmp

hmp.convert()

class Products(Dataset):
    def __len__(self): return 2
    def __getitem__(self, index): return torch.mm(torch.eye(2), torch.eye(2))

if __name__ == "__main__":
    loader = DataLoader(Products(), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    print([item.dtype for item in loader], torch.mm(torch.eye(2), torch.eye(2)).dtype)
"""


def test_nothing_is_cast_in_spawned_workers_that_run_the_script_again(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SPAWNED)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[torch.float32, torch.float32] torch.bfloat16"


def _tell(queue: Any) -> None:
    queue.put(is_cast())


def test_a_forked_process_that_is_no_worker_casts(converted: Converter) -> None:
    converted(bf16=["mm"])
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_tell, args=(queue,))
    process.start()
    assert queue.get() is True
    process.join()


def test_items_of_a_loader_without_workers_are_cast(converted: Converter) -> None:
    # There is no worker, so there is nothing to protect by rule 11; the dataset runs in the program's own thread.
    converted(bf16=["mm"])
    assert [item.dtype for item in DataLoader(Products(), batch_size=None)] == [BF16] * 3


# ---- rule 11: state that is made elsewhere -------------------------------------------------------------------------


def warned(make: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    return [one for one in caught if issubclass(one.category, HmpWarning)]


def product() -> torch.Tensor:
    return torch.mm(M, N)


LOWERED: dict[str, Callable[[], torch.Tensor]] = {
    "product": product,
    "operator": lambda: M @ N,
    "linear": lambda: F.linear(M, N),
}


@pytest.mark.parametrize("source", LOWERED)
@pytest.mark.parametrize("kind", ["parameter", "buffer", "assigned buffer", "registered parameter"])
def test_state_made_of_a_lowered_result_is_warned_about_once_with_the_line(source: str, kind: str) -> None:
    hmp.convert()
    module = nn.Linear(2, 2)
    module.register_buffer("table", None)

    def make() -> None:
        value = LOWERED[source]()
        if kind == "parameter":
            module.weight = nn.Parameter(value)
        elif kind == "buffer":
            module.register_buffer("other", value)
        elif kind == "assigned buffer":
            module.table = value
        else:
            module.register_parameter("another", nn.Parameter(value))

    caught = warned(lambda: [make(), make()])
    assert len(caught) == 1
    assert caught[0].filename == __file__
    lines = Path(__file__).read_text().splitlines()
    assert "module." in lines[caught[0].lineno - 1]
    assert "disable_casts" in str(caught[0].message)


def test_each_line_that_makes_state_of_lowered_results_is_warned_about() -> None:
    hmp.convert()

    def two_lines() -> None:
        nn.Parameter(product())
        nn.Module().register_buffer("table", product())

    assert len(warned(lambda: [two_lines(), two_lines()])) == 2


RECORDED: dict[str, Callable[[nn.Parameter], Any]] = {
    "scaled": lambda weight: nn.Parameter(weight * 2),
    "product": lambda weight: nn.Parameter(M @ weight),
    "data": lambda weight: setattr(weight, "data", weight * 0.5),
    "buffer": lambda weight: nn.Module().register_buffer("table", weight * 2),
}


@pytest.mark.parametrize("size", [4, 3000])
@pytest.mark.parametrize("made", RECORDED.values(), ids=RECORDED)
def test_weights_made_of_a_recorded_result_are_warned_about(made: Callable[[nn.Parameter], Any], size: int) -> None:
    hmp.convert()
    weight = nn.Parameter(torch.ones(4, size))
    (caught,) = warned(lambda: made(weight))
    assert caught.filename == __file__


MEANT: dict[str, Callable[[], Any]] = {
    "converted": lambda: nn.Parameter(nn.Parameter(torch.ones(4)).bfloat16()),
    "view of the converted": lambda: nn.Parameter(nn.Parameter(torch.ones(4, 2)).bfloat16().t()[:1].clone()),
    "lower already": lambda: nn.Parameter(nn.Parameter(torch.ones(4, dtype=BF16)) * 2),
    "raised again": lambda: nn.Parameter((nn.Parameter(torch.ones(4)) * 2).float()),
}


@pytest.mark.parametrize("made", MEANT.values(), ids=MEANT)
def test_weights_that_are_meant_so_are_not_warned_about(made: Callable[[], Any]) -> None:
    hmp.convert()
    assert warned(made) == []
    with hmp.disable_casts():
        assert warned(lambda: nn.Parameter(nn.Parameter(torch.ones(4)).bfloat16() * 2)) == []


def test_a_constructor_that_computes_in_lower_precision_is_not_warned_about() -> None:
    class Scaled(nn.Module):
        def __init__(self, base: nn.Parameter) -> None:
            super().__init__()
            self.scaled = nn.Parameter(base.bfloat16() * 2)

    hmp.convert()
    assert warned(lambda: Scaled(nn.Parameter(torch.ones(4)))) == []


def test_a_bare_parameter_made_of_a_lowered_result_is_warned_about() -> None:
    hmp.convert()
    assert len(warned(lambda: nn.Parameter(torch.mm(M, N)))) == 1


def test_a_float32_buffer_that_is_assigned_a_lower_value_is_warned_about() -> None:
    class Averaging(nn.Module):
        running: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.running = 0.9 * self.running + 0.1 * x.mean(0)
            return x

    module = Averaging()
    hmp.convert()
    (caught,) = warned(lambda: [module(M), module(M)])
    assert str(caught.message).startswith("the buffer `running` of Averaging is assigned a tensor in lower precision")


def test_a_float32_parameter_that_gets_computed_lower_data_is_warned_about() -> None:
    parameter = nn.Parameter(torch.ones(4))
    hmp.convert()

    def average() -> None:
        parameter.data = parameter.data * 0.9 + 0.1 * torch.zeros(4)

    (caught,) = warned(lambda: [average(), average()])
    assert str(caught.message).startswith("the `.data` of a float32 Parameter is assigned a tensor in lower precision")
    with hmp.disable_casts():
        parameter.data = torch.ones(4)
    assert warned(average) == []  # the line was told


def made_state(kind: str, value: torch.Tensor) -> torch.Tensor:
    module = nn.Linear(4, 4)
    module.register_buffer("table", None)
    if kind == "parameter":
        module.weight = nn.Parameter(value, requires_grad=True)
    elif kind == "data":
        module.weight.data = value
    elif kind == "data of a tensor":
        tensor = torch.zeros(4, 4)
        tensor.data = value
        return tensor
    elif kind == "buffer":
        module.register_buffer("table", value)
        return module._buffers["table"]
    else:
        module.table = value
        return module._buffers["table"]
    return module.weight


STATE = ["parameter", "data", "data of a tensor", "buffer", "assigned buffer"]


@pytest.mark.parametrize("place", ["outside", "constructor", "without casts"])
@pytest.mark.parametrize("kind", STATE)
def test_state_made_of_a_lowered_result_stays_float32(kind: str, place: str) -> None:
    class Made(nn.Module):
        def __init__(self, value: torch.Tensor) -> None:
            super().__init__()
            self.made = [made_state(kind, value)]

    def make() -> None:
        value = product()
        if place == "outside":
            made.append(made_state(kind, value))
        elif place == "constructor":
            made.append(Made(value).made[0])
        else:
            with hmp.disable_casts():
                made.append(made_state(kind, value))

    made: list[torch.Tensor] = []
    hmp.convert()
    expected = product()
    assert len(warned(lambda: [make(), make()])) == 1
    for one in made:
        assert one.dtype is FP32
        assert torch.equal(one.detach(), expected.float())
        assert one.is_leaf
    hmp.restore()
    if kind in ("parameter", "data"):
        (made[0] @ M).sum().backward()
        assert made[0].grad is not None
        assert made[0].grad.dtype is FP32


@pytest.mark.parametrize("kind", STATE)
def test_state_made_of_a_recorded_result_stays_float32(kind: str) -> None:
    weight = nn.Parameter(torch.full((4, 4), 0.7))
    hmp.convert()
    made: list[torch.Tensor] = []
    assert len(warned(lambda: made.append(made_state(kind, weight * 0.3)))) == 1
    assert made[0].dtype is FP32
    assert torch.equal(made[0].detach(), (weight.detach() * 0.3).float())
    # A buffer is a part of the graph that it came from, as in plain torch.
    assert made[0].requires_grad is (kind != "data of a tensor")
    if "buffer" in kind:
        made[0].sum().backward()
        assert weight.grad is not None
        assert weight.grad.dtype is FP32


@pytest.mark.parametrize("kind", STATE)
def test_state_that_somebody_makes_lower_is_as_he_made_it(kind: str) -> None:
    hmp.convert()
    made: list[torch.Tensor] = []
    values = nn.Linear(4, 4).weight.data.bfloat16()
    with hmp.disable_casts():
        assert warned(lambda: made.append(made_state(kind, values))) == []
    assert made[0].dtype is BF16


def test_weights_that_their_first_batch_sets_stay_float32() -> None:
    class Normalising(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.ones(1, 4)), nn.Parameter(torch.ones(1, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = -torch.log(x.std(dim=0, keepdim=True) + 1e-6)
            self.scale.data = scale.data
            self.shift.data = (-x.mean(dim=0, keepdim=True) * torch.exp(self.scale)).data
            return x * torch.exp(self.scale) + self.shift

    module = Normalising()
    optimizer = torch.optim.Adam(module.parameters())
    hmp.convert()
    assert warned(lambda: module(N + M).float().sum().backward())
    optimizer.step()
    for one in module.parameters():
        assert one.dtype is FP32
        assert one.grad is not None
        assert one.grad.dtype is FP32
        assert optimizer.state[one]["exp_avg"].dtype is FP32


def test_weights_that_get_the_parts_of_a_computed_vector_stay_float32() -> None:
    model = nn.Linear(4, 4)
    hmp.convert()
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()
    assert warned(lambda: nn.utils.vector_to_parameters(vector * 0.9 + 0.01, model.parameters()))
    assert [one.dtype for one in model.parameters()] == [FP32, FP32]


@pytest.mark.parametrize("kind", STATE)
def test_a_warning_of_state_that_is_made_an_error_leaves_what_was_there(kind: str) -> None:
    hmp.convert()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            hmp.convert()
            with pytest.raises(HmpWarning):
                made_state(kind, product())
    assert made_state("parameter", torch.ones(2)).dtype is FP32


def test_memory_that_was_freed_is_not_read_as_data_is_assigned() -> None:
    done = run_script(
        "import torch\n"
        "from habana_mp import hmp\n"
        "hmp.convert()\n"
        "for shape in ((), (4, 4)):\n"
        "    former, lower = torch.nn.Parameter(torch.ones(shape)), torch.ones(shape, dtype=torch.bfloat16)\n"
        "    former.untyped_storage().resize_(0)\n"
        "    former.data = lower\n"
        "    other, freed = torch.nn.Parameter(torch.ones(shape)), torch.ones(shape, dtype=torch.bfloat16)\n"
        "    freed.untyped_storage().resize_(0)\n"
        "    other.data = freed\n"
        "    print(other.dtype)\n"
    )
    assert (done.returncode, done.stdout.split()) == (0, ["torch.bfloat16"] * 2), done.stderr


def test_state_that_is_meant_to_be_lower_is_not_warned_about() -> None:
    hmp.convert()

    def make() -> None:
        module = nn.Linear(4, 4)
        for _ in range(200):
            result = torch.mm(M, N)
            del result
            module.register_buffer("table", torch.zeros(4, dtype=BF16))
        module.bfloat16()
        other = nn.Linear(4, 4)
        other.weight.data = other.weight.data.bfloat16()
        other.to("meta").bfloat16()
        other.weight.data[0] = torch.nan
        other.bfloat16()
        module.weight = nn.Parameter(torch.ones(4, 4, dtype=BF16))
        module.weight = nn.Parameter(torch.mm(M, N).float())

    assert warned(make) == []


def test_a_new_convert_warns_again() -> None:
    module = nn.Linear(2, 2)

    def make() -> None:
        module.register_buffer("table", torch.mm(M, N))

    for _ in range(2):
        hmp.convert()
        assert len(warned(make)) == 1


# ---- errors --------------------------------------------------------------------------------------------------------

WRONG: dict[str, Callable[[], Any]] = {
    "shapes": lambda: torch.mm(M, N[:3]),
    "no arguments": torch.mm,  # type: ignore[call-overload]
    "too few": lambda: torch.mm(M),  # type: ignore[call-overload]
    "too many": lambda: torch.mm(M, N, M, N),  # type: ignore[call-overload]
    "an unknown keyword": lambda: torch.mm(M, N, nonsense=1),  # type: ignore[call-overload]
    "a string": lambda: torch.mm(M, "x"),  # type: ignore[arg-type]
    "None": lambda: torch.mm(None, M),  # type: ignore[arg-type]
    "a method without self": torch.Tensor.mm,  # type: ignore[call-arg]
    "a method of a number": lambda: torch.Tensor.mm(3, M),  # type: ignore[arg-type]
    "t with arguments": lambda: M.t(1),  # type: ignore[call-arg]
    "a mixed list": lambda: torch.cat([M, "x"]),  # type: ignore[list-item]
    "an empty list": lambda: torch.cat([]),
    "an operator": lambda: M @ "x",  # type: ignore[operator]
    "a dimension": lambda: torch.softmax(M, 7),
    "an assignment": lambda: M.clone().__setitem__(0, torch.ones(7, dtype=BF16)),
    "a linear": lambda: F.linear(M, torch.ones(3, 3)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_raises_what_torch_raises(name: str) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011  whatever torch raises
        WRONG[name]()
    hmp.convert()
    with pytest.raises(Exception) as caught:  # noqa: PT011
        WRONG[name]()
    assert type(caught.value) is type(expected.value)
    assert str(caught.value) == str(expected.value)
    assert is_cast()


def test_an_interrupt_is_not_swallowed_by_a_second_attempt(converted: Converter) -> None:
    class Interrupting(torch.Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.mm:
                cls.calls += 1
                raise KeyboardInterrupt
            return super().__torch_function__(func, types, args, kwargs or {})

    converted(bf16=["mm"])
    with pytest.raises(KeyboardInterrupt):
        torch.mm(M.as_subclass(Interrupting), M)
    assert Interrupting.calls == 1


def test_casts_in_a_coroutine_follow_its_own_thread(converted: Converter) -> None:
    async def main() -> list[bool]:
        return list(await asyncio.gather(*(asyncio.to_thread(is_cast) for _ in range(3))))

    converted(bf16=["mm"])
    assert asyncio.run(main()) == [True] * 3


def test_the_names_of_the_tables_exist_in_this_torch() -> None:
    for table in (_operations.WIDEST, _operations.NO_KERNEL, _operations.GEMM, _operations.OTHER_FLOATING):
        assert isinstance(table, frozenset)
    missing = [name for name in _operations.GEMM if not _operations.builtins_named(name)]
    assert missing == []
