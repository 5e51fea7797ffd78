"""Compiled updates of weights, and steps of optimizers, are in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.compiled_functions import M, N
from helpers.compiling import needs_compiler

BF16, FP32 = torch.bfloat16, torch.float32

OPTIMIZERS = ["SGD", "AdamW", "Adagrad", "RMSprop", "NAdam", "Rprop"]


pytestmark = pytest.mark.usefixtures("compiled_anew", "one_thread")


class Product(torch.optim.Optimizer):
    """A step of one's own, which can be traced whole."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]  # any closure
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for weight in group["params"]:
                grad = torch.ones_like(weight) if weight.grad is None else weight.grad
                weight.copy_(weight - torch.mm(weight, torch.mul(grad, 0.01)))
        return loss


def stepped(make: Callable[[Any], torch.optim.Optimizer], compile_it: Callable[[Any], Any]) -> list[torch.Tensor]:
    weight = nn.Parameter(M.clone())
    optimizer = make([weight])
    step = compile_it(optimizer)
    for _ in range(3):
        weight.grad = torch.cos(weight.detach())
        step()
    torch._dynamo.reset()
    return [weight.detach(), *(one for one in optimizer.state[weight].values() if isinstance(one, torch.Tensor))]


WAYS: dict[str, Callable[[Any], Any]] = {
    "step": lambda optimizer: torch.compile(optimizer.step, backend="aot_eager"),
    "function": lambda optimizer: torch.compile(lambda: optimizer.step(), backend="aot_eager"),
    "after a product": lambda optimizer: torch.compile(
        lambda: (torch.mm(M, N), optimizer.step(), torch.mm(M, N)), backend="eager"
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_step_is_float32_bit_by_bit(name: str) -> None:
    make = lambda weights: getattr(torch.optim, name)(weights, foreach=name < "R")  # noqa: E731
    way = list(WAYS.values())[OPTIMIZERS.index(name) % len(WAYS)]
    # torch.compile may take an in-place operation apart, with a last bit of its own; see the next test. In older
    # releases nothing keeps it from that.
    switch = "enable_dynamo_decompositions"
    is_known = hasattr(torch._dynamo.config, switch)
    with torch._dynamo.config.patch({switch: False} if is_known else {}):
        expected = stepped(make, way)
        hmp.convert()
        for one, other in zip(stepped(make, way), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0 if is_known else 1e-6, atol=0 if is_known else 1e-9)
    assert torch.mm(M, N).dtype is BF16


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [Product, lambda weights: torch.optim.Adam(weights, lr=torch.tensor(0.01))])
def test_a_compiled_step_is_recognised_however_it_is_reached(make: Any, way: str) -> None:
    expected = stepped(make, WAYS[way])
    hmp.convert()
    for one, other in zip(stepped(make, WAYS[way]), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_a_step_of_ones_own_is_traced_whole_with_a_closure_that_is_cast() -> None:
    hmp.convert()
    optimizer = Product([weight := nn.Parameter(M.clone())])

    def closure() -> torch.Tensor:
        return torch.mm(M, N)

    def train() -> list[torch.Tensor]:
        before = torch.mm(M, N)
        return [before, optimizer.step(closure=closure), optimizer.step(closure), torch.mm(M, N)]

    compiled = torch.compile(train, backend="aot_eager", fullgraph=True)
    assert [one.dtype for one in compiled()] == [BF16] * 4
    with hmp.disable_casts():
        assert [one.dtype for one in compiled()] == [FP32] * 4
    assert [one.dtype for one in compiled()] == [BF16] * 4
    hmp.restore()
    other = Product([again := nn.Parameter(M.clone())])
    for _ in range(6):
        other.step()
    assert_same(weight.detach(), again.detach())


@needs_compiler
def test_a_training_step_compiled_with_inductor_updates_weights_in_float32() -> None:
    make = lambda weights: torch.optim.Adam(weights, lr=0.1)  # noqa: E731
    way = lambda optimizer: torch.compile(optimizer.step)  # noqa: E731
    expected = stepped(make, way)
    hmp.convert()
    for one, other in zip(stepped(make, way), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_a_compiled_update_in_place_keeps_its_float32_products() -> None:
    def update(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return total.mul_(0.9).addcmul_(x, x, value=0.1).addcdiv_(x, x + 1, value=0.5)

    expected = update(M.clone(), N)
    hmp.convert()
    assert_same(torch.compile(update, backend="aot_eager", fullgraph=True)(M.clone(), N), expected)
    assert_same(torch.compile(update, backend="aot_eager")(M.bfloat16(), N), update(M.bfloat16(), N))
