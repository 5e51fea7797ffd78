"""What an operation writes into stays what it is, and keeps its memory (rule 3)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from habana_mp import hmp, ops
from habana_mp.ops.find import builtins_named
from helpers.cases import VIEWS
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import BF16, FP16, FP32, INDEX, SQUARE, M, N

IN_PLACE: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add_": lambda x, y: x.add_(y),
    "pow_": lambda x, y: x.pow_(y),
    "addcmul_": lambda x, y: x.addcmul_(y, y),
    "addmm_": lambda x, y: x.addmm_(y, y),
    "index_add_": lambda x, y: x.index_add_(0, INDEX, y),
    "index_put_": lambda x, y: x.index_put_((INDEX,), y),
    "scatter_": lambda x, y: x.scatter_(0, SQUARE, y),
    "masked_fill_": lambda x, y: x.masked_fill_(SQUARE > 1, y[0, 0]),
    "fill_": lambda x, y: x.fill_(y[0, 0]),
    "clamp_": lambda x, y: x.clamp_(min=y),
    "+=": lambda x, y: x.__iadd__(y),
    "*=": lambda x, y: x.__imul__(y),
    "/=": lambda x, y: x.__itruediv__(y),
    "**=": lambda x, y: x.__ipow__(y),
    "x[1:] =": lambda x, y: x.__setitem__(slice(1, 3), y[:2]),
    "x[index] =": lambda x, y: x.__setitem__(INDEX, y),
    "x[mask] =": lambda x, y: x.__setitem__(SQUARE > 1, y[:2].flatten()),
    "x[...] =": lambda x, y: x.__setitem__(Ellipsis, y),
    "torch.relu_": lambda x, y: torch.relu_(x),
    "F.relu(inplace)": lambda x, y: F.relu(x, inplace=True),
    "F.hardtanh(inplace)": lambda x, y: F.hardtanh(x, 0.2, 0.5, inplace=True),
    "F.threshold(inplace)": lambda x, y: F.threshold(x, 0.5, 0.1, inplace=True),
    "F.dropout(inplace)": lambda x, y: F.dropout(x, 0.5, inplace=True),
    "nn.Dropout(inplace)": lambda x, y: nn.Dropout(0.5, inplace=True)(x),
}
LISTED_IN_PLACE = (
    *("iadd", "imul", "itruediv", "relu", "hardtanh", "threshold", "dropout", "add", "mul", "pow", "addmm", "addcmul"),
    *("index_add", "index_put", "scatter", "masked_fill", "add_", "mul_", "relu_", "dropout_", "__setitem__", "fill_"),
)


@each("kinds", [(FP32, BF16), (BF16, FP32), (FP32, FP32)])
@each("listed", ["", "bf16", "fp32"])
@pytest.mark.filterwarnings("ignore:.*has no effect")
def test_an_in_place_operation_keeps_dtype_identity_and_storage(
    converted: Converter, kinds: tuple[torch.dtype, torch.dtype], listed: str
) -> None:
    x, y = M.to(kinds[0]), N.to(kinds[1])
    expected = {name: x.clone() for name in IN_PLACE}
    for name, change in IN_PLACE.items():
        torch.manual_seed(5)
        change(expected[name], y.to(kinds[0]))
    converted(**({listed: LISTED_IN_PLACE} if listed else {}))
    for name, change in IN_PLACE.items():
        target = x.clone()
        address = target.data_ptr()
        torch.manual_seed(5)
        result = change(target, y)
        assert (target.dtype, target.data_ptr()) == (kinds[0], address), name
        assert torch.equal(target, expected[name]), name
        if result is not None:
            assert result is target or result.data_ptr() == address, name
            assert result.dtype is kinds[0], name


def test_an_integer_target_is_left_to_torch(converted: Converter) -> None:
    converted(bf16=["iadd", "mul"])
    x = torch.arange(4)
    x[1:3] = torch.tensor([7.0, 8.0])
    assert x.tolist() == [0, 7, 8, 3]
    with pytest.raises(RuntimeError, match="result type"):
        x += torch.ones(4)


@pytest.mark.filterwarnings("ignore:.*has no effect")
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_what_is_written_into_a_view_reaches_the_tensor(converted: Converter, precision: str) -> None:
    converted(**{precision: [case.name for case in VIEWS]})
    for case, dtype in itertools.product(VIEWS, (FP32, BF16, FP16)):
        x = case.cast(dtype)[0].clone()
        shape, strides = x.shape, x.stride()
        for view in tree_leaves(case.call(x)):
            assert view.dtype is dtype, case
            view.zero_()
        assert (x.shape, x.stride()) == (shape, strides), case
        assert not x.any(), case


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
    "index_put_": lambda x, y: torch.index_put_(values=y, input=x, indices=(INDEX,)),
    "dropout_": lambda x, y: torch.dropout_(train=False, p=0.5, input=x),
}


@each("dtypes", [(FP32, BF16), (BF16, FP32), (FP32, FP16)])
@each("name", IN_PLACE_BY_KEYWORD)
def test_what_is_written_into_is_found_wherever_it_stands(
    converted: Converter, name: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    converted()
    target, other = torch.zeros(4, dtype=dtypes[0]), torch.ones(4, dtype=dtypes[1])
    result = IN_PLACE_BY_KEYWORD[name](target, other)
    assert result is target
    expected = IN_PLACE_BY_KEYWORD[name](torch.zeros(4), torch.ones(4))
    assert torch.equal(target, expected.to(dtypes[0]))


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


def test_the_names_of_the_tables_exist_in_this_torch() -> None:
    missing = [name for name, row in ops.rows().items() if row.o2 == "lower" and not builtins_named(name)]
    assert missing == []


def test_what_an_operation_writes_into_beside_its_first_input_is_never_cast() -> None:
    written = {
        (name, position, argument.name)
        for schema in torch._C._jit_get_all_schemas()
        for name in [schema.name.removeprefix("aten::")]
        for position, argument in enumerate(schema.arguments)
        if position > 0 and argument.alias_info is not None and argument.alias_info.is_write and not argument.is_out
        if builtins_named(name)
    }
    assert ("_native_batch_norm_legit", 3, "running_mean") in written
    for name, position, keyword in sorted(written - {("_amp_update_scale_", 1, "growth_tracker")}):  # an integer
        castable = ops.arguments_of(name)
        assert castable is not None, name
        assert position not in castable.positions
        assert keyword in castable.kept_keywords


@each("key", [70_000, torch.tensor(70_000)])
@each("value", [torch.tensor(3.5), 1e6, float("-inf")])
def test_the_key_of_an_assignment_is_no_value(key: Any, value: Any, converted: Converter) -> None:
    converted(bf16=["mm"])
    filled = torch.zeros(100_000, dtype=FP16)
    filled[key] = value
    assert filled[key].item() == min(float(value), torch.finfo(FP16).max)
    assert int((filled != 0).sum()) == 1


def test_an_assignment_that_only_fills_in_a_number_is_not_counted(converted: Converter) -> None:
    converted(bf16=["mm"])
    hmp.reset_report()
    filled = torch.zeros(4, dtype=BF16)
    for number in (1, 2.0, float("inf"), float("nan")):
        filled[0] = number
    assert not [row for row in hmp.report(show=False) if row.operation == "setitem"]
    filled[0] = torch.finfo(FP32).max
    filled[1:] = torch.ones(3)
    rows = {(row.precision, row.reason, row.calls) for row in hmp.report(show=False) if row.operation == "setitem"}
    assert rows == {("bf16", "scalar", 1), ("bf16", "in_place", 1)}
