"""custom_fwd and custom_bwd, ours and torch's: a user's own autograd function in a region, beside torch.autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.each import each
from helpers.lists import Converter

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
X, Y = torch.linspace(-1, 1, 64).reshape(8, 8), torch.linspace(0, 3, 64).reshape(8, 8)
OURS, TORCHS = (hmp.custom_fwd, hmp.custom_bwd), (torch.amp.custom_fwd, torch.amp.custom_bwd)
BOTH = pytest.mark.parametrize("decorators", [OURS, TORCHS], ids=["ours", "torchs"])

Decorators = tuple[Callable[..., Any], Callable[..., Any]]


def product(decorators: Decorators, cast_inputs: torch.dtype | None = None, seen: list[Any] | None = None) -> Any:
    """torch's documentation's function: a product with a backward of its own."""
    fwd, bwd = decorators
    notes: list[Any] = [] if seen is None else seen

    class Product(torch.autograd.Function):
        @staticmethod
        @fwd(device_type="cpu", cast_inputs=cast_inputs)
        def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(a, b)
            result = a.mm(b)
            notes.append(("forward", a.dtype, result.dtype))
            return result

        @staticmethod
        @bwd(device_type="cpu")
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            a, b = ctx.saved_tensors
            results = grad.mm(b.t()), a.t().mm(grad)
            notes.append(("backward", grad.dtype, results[0].dtype))
            return results

    return Product.apply


def run(apply: Any, region: Callable[[], Any]) -> list[torch.Tensor]:
    a, b = X.clone().requires_grad_(), Y.clone().requires_grad_()
    with region():
        result = apply(a, b)
    result.float().sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    return [result, a.grad, b.grad]


@BOTH
@each("cast_inputs", [None, FP32, FP16])
def test_a_function_of_ones_own_is_torch_autocasts_to_the_bit(decorators: Decorators, cast_inputs: Any) -> None:
    expected = run(product(TORCHS, cast_inputs), lambda: torch.autocast("cpu"))
    assert_same(run(product(decorators, cast_inputs), lambda: hmp.autocast("cpu")), expected)


@BOTH
def test_inputs_are_cast_and_the_forward_runs_without_casts(decorators: Decorators) -> None:
    seen: list[Any] = []
    with hmp.autocast("cpu"):
        result = product(decorators, FP32, seen)(X.bfloat16(), Y)
    assert result.dtype is FP32
    assert seen == [("forward", FP32, FP32)]


@BOTH
@pytest.mark.parametrize("cast_inputs", [None, FP16])
def test_outside_of_regions_nothing_happens(decorators: Decorators, cast_inputs: Any) -> None:
    with hmp.autocast("cpu"):
        pass
    seen: list[Any] = []
    run(product(decorators, cast_inputs, seen), torch.enable_grad)
    assert seen == [("forward", FP32, FP32), ("backward", FP32, FP32)]


@pytest.mark.parametrize(("decorators", "lower"), [(OURS, FP32), (TORCHS, BF16)], ids=["ours", "torchs"])
def test_under_convert_alone_only_ours_casts_inputs(decorators: Decorators, lower: Any, converted: Converter) -> None:
    converted(bf16=["mm"])
    seen: list[Any] = []
    run(product(decorators, FP32, seen), torch.enable_grad)
    assert [one[2] for one in seen] == [lower, lower]
    assert torch.mm(X, X).dtype is BF16


@BOTH
@pytest.mark.parametrize("fails_in", ["forward", "backward"])
def test_an_exception_in_either_leaves_what_was_before(decorators: Decorators, fails_in: str) -> None:
    fwd, bwd = decorators

    class Fails(torch.autograd.Function):
        @staticmethod
        @fwd(device_type="cpu", cast_inputs=FP16)
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            if fails_in == "forward":
                raise ZeroDivisionError
            return a.clone()

        @staticmethod
        @bwd(device_type="cpu")
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError

    with hmp.autocast("cpu"):
        with pytest.raises(ZeroDivisionError):
            Fails.apply(X.clone().requires_grad_()).float().sum().backward()
        assert torch.mm(X, X).dtype is BF16
    assert torch.mm(X, X).dtype is FP32


def test_the_device_type_is_checked_as_torchs_is() -> None:
    for decorate in (*OURS, *TORCHS):
        wrong: Any = torch.device("cpu")
        with pytest.raises(ValueError, match="device_type"):
            decorate(device_type=wrong)


def test_what_is_no_function_and_no_dtype_is_refused() -> None:
    wrong: Any = 5
    with pytest.raises(TypeError, match="`fwd` must be a function; got int: 5"):
        hmp.custom_fwd(wrong, device_type="cpu")
    with pytest.raises(TypeError, match="`bwd` must be a function; got int: 5"):
        hmp.custom_bwd(wrong, device_type="cpu")
    with pytest.raises(ValueError, match=r"`cast_inputs` must be a torch\.dtype or None; got 5"):
        hmp.custom_fwd(device_type="cpu", cast_inputs=wrong)
