"""op_wrap under torch.compile: a wrapped function is a part of the graph, and sees what it would see uncompiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.compiled_functions import LABELS, M, N

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
pytestmark = pytest.mark.usefixtures("compiled_anew", "one_thread")


def listed_in_fp32(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def many_arguments(x: torch.Tensor, count: int, others: Any, *, bias: torch.Tensor | None = None) -> torch.Tensor:
    total = listed_in_fp32(x) * count
    for other in others:
        total = total + torch.mm(other, x.to(other.dtype)) if other.is_floating_point() else total - other
    return total if bias is None else total * bias


@pytest.mark.parametrize("to", ["bf16", "fp32", "widest"])
def test_a_wrapped_function_is_a_part_of_the_graph(to: str) -> None:
    wrapped = hmp.op_wrap(many_arguments, to=to)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first = wrapped(torch.relu(x), 3, [y, LABELS])
        return torch.mm(wrapped(first.half(), 2, (y.bfloat16(), first), bias=y) + x, y)

    def gradients(call: Callable[..., torch.Tensor]) -> list[Any]:
        x, y = M.clone().requires_grad_(), N.clone().requires_grad_()
        result = call(x, y)
        result.float().sum().backward()
        return [result.detach(), x.grad, y.grad]

    compiled = torch.compile(function, backend="eager", fullgraph=True)
    assert_same(gradients(compiled), gradients(function))
    hmp.convert()
    assert_same(gradients(compiled), gradients(function))
    with hmp.disable_casts():
        assert_same(gradients(compiled), gradients(function))
    with hmp.autocast("cpu", FP16):
        assert_same(gradients(compiled), gradients(function))


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


SEQUENCES: dict[str, Callable[[torch.Tensor], Any]] = {
    "nested": lambda x: [[x], (x, [x, 3])],
    "float64 within": lambda x: [[x.double()], x],
    "named tuple in a list": lambda x: [Pair(x, x), x],
    "words": lambda x: ["x", x, None],
}


def seen(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *[seen(one) for one in value]]
    return value.dtype if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("to", ["bf16", "widest"])
def test_a_wrapped_function_is_given_the_same_sequences_compiled_or_not(name: str, to: str) -> None:
    wrapped = hmp.op_wrap(lambda x, values, **named: seen([x, values, named.get("more")]), to=to)

    def call(x: torch.Tensor) -> Any:
        return wrapped(x, SEQUENCES[name](x), more=SEQUENCES[name](x.half()))

    hmp.convert()
    expected = call(M)
    assert torch.compile(call, backend="eager", fullgraph=True)(M) == expected
    if "named tuple" in name:
        assert "Pair" in str(expected)


@pytest.mark.parametrize("explicit", [{"dtype": FP16}, {"out": None}], ids=str)
def test_a_wrapped_function_that_is_told_a_dtype_is_left_alone_compiled_or_not(explicit: dict[str, Any]) -> None:
    wrapped = hmp.op_wrap(lambda x, **_: x * 1, to="bf16")
    hmp.convert()
    result = torch.compile(lambda x: wrapped(x, **explicit), backend="eager", fullgraph=True)(M)
    assert result.dtype is wrapped(M, **explicit).dtype


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "op_wrap": lambda function: hmp.op_wrap(function, to="fp32"),
    "disable_casts": lambda function: hmp.disable_casts(function),
    "autocast": lambda function: hmp.autocast("cpu", FP16)(function),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_of_a_compiled_function_holds_in_other_compiled_code(name: str) -> None:
    inner = torch.compile(lambda x, y: torch.mm(x, y), backend="eager")
    wrapped = WRAPPERS[name](inner)
    hmp.convert()
    expected = wrapped(M, N).dtype
    assert expected is (FP16 if name == "autocast" else FP32)
    assert torch.compile(lambda x, y: wrapped(x, y) + 0, backend="eager")(M, N).dtype is expected
    assert torch.compile(wrapped, backend="eager")(M, N).dtype is expected


@pytest.mark.parametrize("wrapped_first", [True, False])
def test_a_function_is_compiled_anew_where_it_is_wrapped(wrapped_first: bool) -> None:
    compiled = torch.compile(listed_in_fp32, backend="aot_eager", fullgraph=True)
    called = {True: hmp.op_wrap(compiled, to="bf16"), False: compiled}
    hmp.convert()
    for is_wrapped in (wrapped_first, not wrapped_first, wrapped_first):
        assert called[is_wrapped](M.bfloat16()).dtype is (BF16 if is_wrapped else FP32)
    with hmp.autocast("cpu", preset="torch-cpu"):
        for is_wrapped in (wrapped_first, not wrapped_first, wrapped_first):
            assert called[is_wrapped](M.bfloat16()).dtype is BF16
