"""op_wrap: a user's function is given its tensors in the precision that was asked for."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import BF16, FP16, FP32, M, N, X

pytestmark = pytest.mark.usefixtures("counted")


def dtypes(*values: object, **named: object) -> list[object]:
    """What a wrapped function is given."""
    return [value.dtype if isinstance(value, torch.Tensor) else value for value in (*values, *named.values())]


@each(
    "to, expected",
    [
        ("bf16", BF16),
        ("fp16", FP16),
        ("fp32", FP32),
        (BF16, BF16),
        (FP16, FP16),
        (FP32, FP32),
        ("bfloat16", BF16),
        ("half", FP16),
        ("Float32", FP32),
        ("widest", FP32),
        ("first", FP16),
    ],
)
def test_the_tensors_of_a_wrapped_function_come_in_its_precision(to: object, expected: torch.dtype) -> None:
    wrapped = hmp.op_wrap(dtypes, to=to)  # type: ignore[arg-type]  # wrong on purpose
    hmp.convert()
    assert wrapped(M.half(), M, 3, "x", y=M.bfloat16()) == [expected, expected, 3, "x", expected]


def test_a_wrapped_function_is_plain_without_convert_and_where_casts_are_off() -> None:
    wrapped = hmp.op_wrap(dtypes)
    assert wrapped(M) == [FP32]
    hmp.convert("O0")
    assert wrapped(M) == [FP32]
    hmp.convert()
    assert wrapped(M) == [BF16]
    with hmp.disable_casts():
        assert wrapped(M) == [FP32]
    with torch.autocast("cpu", enabled=False):
        assert wrapped(M) == [FP32]
    hmp.restore()
    assert wrapped(M) == [FP32]


def test_it_decorates_with_and_without_arguments_and_keeps_the_face() -> None:
    @hmp.op_wrap
    def one(x: torch.Tensor) -> torch.Tensor:
        """One."""
        return x

    @hmp.op_wrap(to="fp32")
    def two(x: torch.Tensor) -> torch.Tensor:
        return x

    class Holder:
        @hmp.op_wrap
        def method(self, x: torch.Tensor) -> torch.Tensor:
            return x

    hmp.convert()
    assert one(M).dtype is BF16
    assert two(M.bfloat16()).dtype is FP32
    assert Holder().method(M).dtype is BF16
    assert (one.__name__, one.__doc__) == ("one", "One.")


def test_operations_partials_and_objects_can_be_wrapped() -> None:
    hmp.convert()
    assert hmp.op_wrap(torch.exp)(M).dtype is BF16
    assert hmp.op_wrap(torch.Tensor.exp, to="fp32")(M.bfloat16()).dtype is FP32
    assert hmp.op_wrap(functools.partial(torch.sum, dim=0))(M).dtype is BF16
    assert hmp.op_wrap(torch.nn.Softmax(-1).bfloat16(), to="fp32")(M.bfloat16()).dtype is FP32


def test_inside_of_a_wrapped_function_the_lists_are_silent(converted: Converter) -> None:
    converted(bf16=["mm"], fp32=["exp"])
    seen = hmp.op_wrap(lambda x: [torch.mm(x, x).dtype, torch.exp(x).dtype], to="fp32")
    assert seen(M.bfloat16()) == [FP32, FP32]
    lowered = hmp.op_wrap(lambda x: [torch.mm(x, x).dtype, torch.exp(x).dtype], to="bf16")
    assert lowered(M) == [BF16, BF16]
    assert torch.exp(M.bfloat16()).dtype is FP32


def test_inside_of_a_wrapped_function_the_other_rules_hold(converted: Converter) -> None:
    converted(bf16=["mm"])
    mixed = hmp.op_wrap(lambda x: [torch.mm(x, N).dtype, (x + N).dtype, torch.fft.fft(x).dtype], to="bf16")
    assert mixed(M) == [BF16, FP32, torch.complex64]


@each("to", ["bf16", "fp32"])
@each("backend", [None, "eager", "aot_eager"])
def test_inside_of_a_wrapped_function_the_lists_do_not_apply_to_functions_that_torch_writes_in_python(
    converted: Converter, backend: str | None, to: str
) -> None:
    listed = {"bf16": "fp32", "fp32": "bf16"}[to]
    converted(**{listed: ["normalize", "softmin", "truediv"]})  # `1 / x` is written in Python
    functions = [F.normalize, F.softmin, lambda x: 1 / x]
    outside = [function(M).dtype for function in functions]
    wrapped = hmp.op_wrap(lambda x: [function(x) for function in functions], to=to)
    if backend is not None:
        wrapped = torch.compile(wrapped, backend=backend)
    given = M.bfloat16() if to == "fp32" else M
    assert [one.dtype for one in wrapped(given)] == [BF16 if to == "bf16" else FP32] * 3
    assert [function(M).dtype for function in functions] == outside == [BF16 if listed == "bf16" else FP32] * 3


def test_a_wrapped_function_is_cast_inside_of_another_and_of_what_torch_writes_in_python(converted: Converter) -> None:
    converted(fp32=["normalize"])
    seen: list[torch.dtype] = []
    inner = hmp.op_wrap(lambda x: seen.append(x.dtype) or x, to="bf16")
    hmp.op_wrap(lambda x: inner(F.normalize(x)), to="fp32")(M)
    assert seen == [BF16]


@pytest.mark.parametrize("backend", [None, "eager"])
def test_a_number_widens_no_tensor_of_a_function_that_takes_the_widest(
    converted: Converter, backend: str | None
) -> None:
    converted()
    wrapped = hmp.op_wrap(lambda x, y: (x + 0, y + 0), to="widest")
    if backend is not None:
        wrapped = torch.compile(wrapped, backend=backend)
    assert dtypes(*wrapped(M.bfloat16(), torch.tensor(0.5))) == [BF16, BF16]
    assert dtypes(*wrapped(M.bfloat16(), torch.ones(1))) == [FP32, FP32]


def test_an_exception_passes_through_once_and_leaves_the_state_right(converted: Converter) -> None:
    called = []

    def failing(x: torch.Tensor) -> None:
        called.append(x.dtype)
        raise KeyError("mine")

    converted(bf16=["mm"])
    with pytest.raises(KeyError, match="mine"):
        hmp.op_wrap(failing)(M)
    assert called == [BF16], "a user's function is not called a second time"
    assert torch.mm(M, N).dtype is BF16


@each("to", ["int8", "bfloat61", "", None, 3, torch.float64, torch.int8])
def test_an_unknown_precision_is_refused_with_the_known(to: object) -> None:
    with pytest.raises(ValueError, match="bf16"):
        hmp.op_wrap(dtypes, to=to)  # type: ignore[call-overload]  # wrong on purpose


@pytest.mark.parametrize("wrong", [3, "mm"])
def test_only_what_can_be_called_can_be_wrapped(wrong: object) -> None:
    with pytest.raises(TypeError, match="op_wrap"):
        hmp.op_wrap(wrong)  # type: ignore[call-overload]  # wrong on purpose


def test_a_wrapped_function_obeys_in_a_region_alone() -> None:
    def given(x: torch.Tensor) -> torch.Tensor:
        return x

    wrapped = hmp.op_wrap(given, to="bf16")
    assert wrapped(X).dtype is FP32
    with hmp.autocast("cpu"):
        assert wrapped(X).dtype is BF16
    assert wrapped(X).dtype is FP32
