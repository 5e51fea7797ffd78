"""Operators of torch.ops, torch's own and the users', listed by their qualified name or wrapped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from habana_mp import hmp
from helpers.compiling import BACKENDS
from helpers.each import each
from helpers.lists import Converter, write_list
from helpers.probes import BF16, FP32, M, N

NAME = "hmp_test::product"
pytestmark = pytest.mark.usefixtures("compiled_anew")


# Schemas are written out: older releases do not read annotations that are strings.
@torch.library.custom_op(NAME, mutates_args=(), schema="(Tensor x, Tensor y, float scale=1.0) -> Tensor")
def product(x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return x.matmul(y) * scale


@product.register_fake
def _(x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return x.new_empty(x.shape[0], y.shape[1])


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, y = ctx.saved_tensors
    return grad.matmul(y.t()), x.t().matmul(grad), None


product.register_autograd(_gradients, setup_context=_keep_inputs)


@torch.library.custom_op("hmp_test::scale_", mutates_args={"x"}, schema="(Tensor(a!) x, Tensor y) -> ()")
def scale_(x: torch.Tensor, y: torch.Tensor) -> None:
    x.mul_(y)


@torch.library.custom_op(
    "hmp_test::store_float32", mutates_args={"total"}, schema="(Tensor x, Tensor(a!) total) -> Tensor"
)
def store_float32(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    total += 1
    if x.dtype is not FP32:
        raise NotImplementedError("for float32 only")
    return x * 2


WAYS: dict[str, Callable[..., torch.Tensor]] = {
    "function": product,
    "packet": torch.ops.hmp_test.product,
    "overload": torch.ops.hmp_test.product.default,
}
BY_HAND = M.bfloat16().matmul(N.bfloat16())


@pytest.mark.parametrize("way", WAYS)
def test_a_listed_operator_is_cast_however_it_is_called(converted: Converter, way: str) -> None:
    call = WAYS[way]
    before = (hash(call), repr(call))
    converted(bf16=[NAME])
    for result in (call(M, N), call(M, N.bfloat16()), call(M, y=N), call(x=M, y=N)):
        assert torch.equal(result, BY_HAND)
    assert [call(M, N).dtype for _ in range(50)] == [BF16] * 50  # also when the interpreter has specialised the call
    assert (hash(call), repr(call)) == before
    hmp.restore()
    assert call(M, N).dtype is FP32


def test_an_operator_in_the_float32_list_gets_float32(converted: Converter) -> None:
    converted(fp32=[NAME])
    assert torch.equal(product(M.bfloat16(), N), M.bfloat16().float().matmul(N))


@pytest.mark.usefixtures("counted")
def test_the_report_and_the_log_name_the_operator(converted: Converter, tmp_path: Path) -> None:
    log = tmp_path / "casts.log"
    converted(bf16=[NAME], log=log)
    product(M, N)
    (row,) = (row for row in hmp.report(show=False).rows if row.operation == NAME)
    assert (row.precision, row.calls, row.casts) == ("bf16", 1, 2)
    hmp.restore()
    assert "casting  <OpOverload(op='hmp_test.product', overload='default')>  to  to_bf16" in log.read_text()


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_an_operator_that_writes_into_its_first_input_keeps_it(converted: Converter, dtype: torch.dtype) -> None:
    converted(bf16=["hmp_test::scale_"])
    target = M.clone().to(dtype)
    address = target.data_ptr()
    scale_(target, N)
    assert (target.dtype, target.data_ptr()) == (dtype, address)
    assert torch.equal(target, M.to(dtype) * N.to(dtype))


def test_an_input_that_is_a_number_in_another_overload_is_cast(converted: Converter) -> None:
    library = torch.library.Library("hmp_test_overloads", "DEF")
    for overload, kind in (("Tensor", "Tensor"), ("Scalar", "float")):
        library.define(f"scale.{overload}(Tensor x, {kind} by) -> Tensor")
        library.impl(f"scale.{overload}", lambda x, by: x.clone().mul_(by), "CompositeExplicitAutograd")
    converted(bf16=["hmp_test_overloads::scale"])
    scale = torch.ops.hmp_test_overloads.scale
    assert torch.equal(scale(M, N), M.bfloat16() * N.bfloat16())
    assert torch.equal(scale(M, by=N), M.bfloat16() * N.bfloat16())
    assert torch.equal(scale(M, 0.5), M.bfloat16() * 0.5)


def test_an_operator_that_writes_into_another_input_is_called_once(converted: Converter) -> None:
    converted(bf16=["hmp_test::store_float32"])
    total = torch.zeros(())
    with pytest.raises(NotImplementedError, match="for float32 only"):
        store_float32(M, total)
    with pytest.raises(NotImplementedError, match="for float32 only"):
        store_float32(M.bfloat16(), total)
    assert total == 2
    with hmp.disable_casts():
        assert torch.equal(store_float32(M, total), M * 2)


@each("name", ["hmp_test::absent", "absent::product", f"{NAME}.absent", "::", "a::"])
def test_an_operator_that_is_not_there_is_an_error_with_its_line(tmp_path: Path, name: str) -> None:
    path = write_list(tmp_path / "own.txt", ["mm", name])
    with pytest.raises(hmp.ListError, match=r"own\.txt:2: unknown operator"):
        hmp.convert("O1", path, "")
    assert not hmp.is_converted()


def test_an_overload_stands_for_its_operator(converted: Converter) -> None:
    converted(bf16=[f"{NAME}.default"])
    assert product(M, N).dtype is BF16


def test_a_name_of_aten_is_the_function_of_that_name(converted: Converter) -> None:
    converted(bf16=["aten::mm", "aten::exp.default"], fp32=["aten::softmax"])
    assert torch.mm(M, N).dtype is BF16
    assert M.exp().dtype is BF16
    assert torch.softmax(M.bfloat16(), -1).dtype is FP32


@each("way", WAYS)
def test_a_compiled_operator_is_cast_as_the_plain_one(converted: Converter, way: str) -> None:
    call = WAYS[way]
    compiled = torch.compile(lambda x, y: call(x, y) + 1, backend="aot_eager", fullgraph=True)
    assert compiled(M, N).dtype is FP32
    converted(bf16=[NAME])
    assert torch.equal(compiled(M, N), call(M, N) + 1)
    assert compiled(M, N).dtype is BF16
    hmp.restore()
    assert compiled(M, N).dtype is FP32


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_compiled_code_does_not_cast_an_operator_again(converted: Converter, backend: str) -> None:
    def regions(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with hmp.disable_casts():
            first = product(x, y)
        # What is generated for the sums must know in which precision the products are.
        return first + 1, product(x, y) + 1

    expected = M.matmul(N) + 1
    converted(bf16=[NAME])
    first, second = torch.compile(regions, backend=backend, fullgraph=True)(M, N)
    assert (first.dtype, second.dtype) == (FP32, BF16)
    torch.testing.assert_close(first, expected)
    assert torch.equal(second, BY_HAND + 1)


@pytest.mark.parametrize("way", ["convert", "region"])
def test_what_a_compiled_operator_consists_of_is_not_cast(converted: Converter, way: str) -> None:
    def train(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with hmp.autocast("cpu", preset="torch-cpu") if way == "region" else contextlib.nullcontext():
            result = compiled(x, y) + 1
            result.sum().backward()
        assert x.grad is not None
        return result, x.grad

    compiled = torch.compile(lambda x, y: product(x, y) + 1, backend="aot_eager", fullgraph=True)
    expected = train(M.clone().requires_grad_(), N)
    if way == "convert":
        converted(bf16=["matmul"])
    # The code around it takes its result for float32 memory, in the first run and in later ones.
    for _ in range(3):
        result, gradient = train(M.clone().requires_grad_(), N)
        assert result.dtype is gradient.dtype is FP32
        torch.testing.assert_close(result, expected[0])
        torch.testing.assert_close(gradient, expected[1], rtol=1e-2, atol=0)  # its formula is a part of the graph
    if way == "convert":
        assert torch.matmul(M, N).dtype is BF16


@pytest.mark.filterwarnings("ignore:torch.autocast is enabled")
def test_an_operator_with_an_autocast_rule_obeys_the_lists_and_autocast(converted: Converter) -> None:
    @torch.library.custom_op("hmp_test::with_autocast", mutates_args=(), schema="(Tensor x) -> Tensor")
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_autocast("cpu", torch.float16)
    converted(bf16=["hmp_test::with_autocast"])
    assert doubled(M).dtype is BF16
    with torch.autocast("cpu", dtype=BF16):
        assert doubled(M).dtype is torch.float16  # autocast acts last
    hmp.restore()
    assert doubled(M).dtype is FP32


@each("backend", [None, "aot_eager"])
@each("way", WAYS)
def test_an_operator_can_be_wrapped(converted: Converter, way: str, backend: str | None) -> None:
    wrapped = hmp.op_wrap(WAYS[way], to="bf16")
    call = wrapped if backend is None else torch.compile(wrapped, backend=backend, fullgraph=True)
    converted()
    assert torch.equal(call(M, N), BY_HAND)
    assert product(M, N).dtype is FP32
