"""torch.autograd.Function: a backward of a user's own, in Python."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import torch
from torch.amp import custom_bwd, custom_fwd

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.each import each
from helpers.gradients import leaf
from helpers.lists import Converter
from helpers.probes import BF16, FP16, FP32, M, N


class Product(torch.autograd.Function):
    """A linear layer by hand, as in torch's tutorial."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return torch.mm(x, weight.t())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return grads[0].mm(weight), torch.mm(grads[0].t(), x)


def test_a_function_with_a_backward_of_its_own_casts_in_both(converted: Converter) -> None:
    x, weight = leaf(M), leaf(N)
    converted(bf16=["mm"])
    out = Product.apply(x, weight)
    out.backward(N)
    hmp.restore()
    by_hand = M.bfloat16() @ N.bfloat16().t()
    assert_same(out.detach(), by_hand)
    grad = N.bfloat16()
    assert_same([x.grad, weight.grad], [(grad @ N.bfloat16()).float(), (grad.t() @ M.bfloat16()).float()])


class Seen(torch.autograd.Function):
    """It notes the precision of a product in its backward, and that of a part that it runs again to record it."""

    seen: ClassVar[list[torch.dtype]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        Seen.seen.append(torch.mm(x, N).dtype)
        with torch.enable_grad():
            Seen.seen.append(torch.mm(x, N).dtype)
        return grads[0] * 2


def test_a_backward_written_in_python_is_not_lowered_as_under_autocast(converted: Converter) -> None:
    def seen(context: Any) -> list[torch.dtype]:
        Seen.seen.clear()
        with context:
            out = Seen.apply(leaf(M))
        out.float().sum().backward()
        return list(Seen.seen)

    assert seen(torch.autocast("cpu"))[0] is FP32
    converted(bf16=["mm"])
    # What records in a backward is a forward that is made a second time.
    assert seen(contextlib.nullcontext()) == [FP32, BF16]
    assert torch.mm(M, N).dtype is BF16
    with hmp.autocast("cpu", preset="torch-cpu"):
        assert seen(contextlib.nullcontext()) == [BF16, BF16]


@each("options", [{}, {"cast_inputs": FP16}, {"cast_inputs": FP32}])
@each("disabled", [False, True])
def test_a_function_written_for_autocast_has_the_casts_of_any_other(options: dict[str, Any], disabled: bool) -> None:
    class ForAutocast(Product):
        forward = staticmethod(custom_fwd(Product.forward, device_type="cpu", **options))
        backward = staticmethod(custom_bwd(Product.backward, device_type="cpu"))

    found = []
    hmp.convert()
    for function in (ForAutocast, Product):
        x, weight = leaf(M), leaf(N)
        with hmp.disable_casts() if disabled else contextlib.nullcontext():
            out = function.apply(x, weight)
            out.backward(N.to(out.dtype))
        assert out.dtype is (FP32 if disabled else BF16)
        found.append([out.detach(), x.grad, weight.grad])
    assert_same(*found)


def test_a_backward_written_for_autocast_obeys_regions_around_it_and_inside_of_it() -> None:
    kinds = []

    class ForAutocast(torch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu")
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            kinds.append(torch.mm(M, N).dtype)
            with torch.autocast("cpu", enabled=False):
                kinds.append(torch.mm(M, N).dtype)
            return grads[0]

    hmp.convert()
    for region in (contextlib.nullcontext, hmp.disable_casts, lambda: torch.autocast("cpu", enabled=False)):
        out = ForAutocast.apply(leaf(M)).sum()
        with region():
            out.backward()
    assert kinds == [BF16, FP32, FP32, FP32, FP32, FP32]
