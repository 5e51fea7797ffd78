"""Hooks on tensors and on nodes of the graph: what they see, what is cast in them, and what they may change."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.gradients import leaf, small_layers
from helpers.lists import Converter

BF16, FP32 = torch.bfloat16, torch.float32
M = torch.linspace(0.1, 0.9, 16).reshape(4, 4)
N = M.t().contiguous() * 0.7


def test_hooks_on_tensors_see_each_gradient_in_its_tensors_precision(converted: Converter) -> None:
    seen: dict[str, torch.dtype] = {}
    x = leaf(M)
    converted(bf16=["mm"])
    hidden = torch.mm(x, N)
    x.register_hook(lambda grad: seen.update(leaf=grad.dtype))
    hidden.register_hook(lambda grad: seen.update(hidden=grad.dtype))
    x.register_post_accumulate_grad_hook(lambda one: seen.update(accumulated=one.grad.dtype))
    torch.autograd.graph.register_multi_grad_hook(
        (x, hidden), lambda grads: seen.update(several=grads[0].dtype, others=grads[1].dtype)
    )
    hidden.sum().backward()
    assert seen == {"leaf": FP32, "hidden": BF16, "accumulated": FP32, "several": FP32, "others": BF16}


def test_hooks_on_nodes_see_the_operation_and_its_casts(converted: Converter) -> None:
    seen: list[tuple[str, torch.dtype]] = []
    x = leaf(M)
    converted(bf16=["mm"])
    out = torch.mm(x, N)
    assert out.grad_fn is not None
    node: Any = out.grad_fn
    node.register_prehook(lambda grads: seen.append(("mm gets", grads[0].dtype)))
    node.register_hook(lambda inputs, _: seen.append(("mm gives", inputs[0].dtype)))
    node.next_functions[0][0].register_hook(lambda inputs, _: seen.append(("the cast gives", inputs[0].dtype)))
    out.sum().backward()
    assert seen == [("mm gets", BF16), ("mm gives", BF16), ("the cast gives", FP32)]


def test_covered_operations_in_a_hook_are_cast_and_the_gradient_is_still_float32(converted: Converter) -> None:
    x, inside = leaf(M), []

    def hook(grad: torch.Tensor) -> torch.Tensor:
        inside.append(torch.mm(grad, N))
        return inside[-1].float()

    x.register_hook(hook)
    converted(bf16=["mm"])
    torch.mm(x, N).sum().backward()
    assert inside[0].dtype is BF16
    assert x.grad is not None
    assert torch.equal(x.grad, inside[0].float())


@pytest.mark.parametrize("arguments", [lambda hook: ((hook,), {}), lambda hook: ((), {"hook": hook})])
def test_a_hook_that_is_registered_later_is_not_cast(arguments: Callable[[Any], Any]) -> None:
    seen = []

    def scaled(grad: torch.Tensor) -> torch.Tensor:
        seen.append(torch.mm(0.1 * grad, N).dtype)
        return grad * lower

    hmp.convert()
    x, lower = leaf(M), M @ M
    hidden = x @ N
    assert lower.dtype is hidden.dtype is BF16
    for tensor in (x, hidden):
        positional, named = arguments(scaled)
        tensor.register_hook(*positional, **named)
    with hmp.disable_casts():
        x.register_hook(lambda grad: seen.append((0.1 * grad).dtype))
    hidden.sum().backward()
    # What hidden gets is lower; a result of another precision than the gradient's is brought back.
    assert seen == [BF16, FP32, FP32]
    assert x.grad is not None
    with hmp.disable_casts():
        expected = ((torch.ones(4, 4).bfloat16() * lower) @ N.bfloat16().t()).float() * lower
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("answer", [lambda gradient: None, lambda gradient: gradient], ids=["None", "what it got"])
def test_a_hook_of_a_tensor_that_gets_no_gradient_is_given_none(answer: Callable[[Any], Any]) -> None:
    linear, seen = nn.Linear(8, 8), []
    hmp.convert()
    q, k = linear(torch.ones(2, 8)).chunk(2, -1)
    q.register_hook(lambda gradient: [seen.append(gradient), answer(gradient)][1])
    k.float().sum().backward()
    assert seen == [None]
    assert linear.weight.grad is not None
    assert torch.equal(linear.weight.grad, torch.cat([torch.zeros(4, 8), torch.full((4, 8), 2.0)]))


def test_a_hook_is_called_with_casts_off_or_after_restore_as_it_is() -> None:
    hmp.convert()
    x = leaf(M)
    x.register_hook(lambda grad: grad * 2)
    removed = x.register_hook(lambda grad: None)
    removed.remove()
    hmp.restore()
    (x * 1.0).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((4, 4), 2.0))


def test_a_hook_that_is_interrupted_leaves_the_lists_as_they_were() -> None:
    hmp.convert()
    x = torch.ones(4, 4, requires_grad=True)

    def interrupted(_: torch.Tensor) -> None:
        raise KeyboardInterrupt

    x.register_hook(interrupted)
    with pytest.raises(KeyboardInterrupt):
        torch.mm(x, M).sum().backward()
    assert torch.mm(M, M).dtype is torch.bfloat16


def test_a_hook_after_accumulation_updates_in_float32() -> None:
    def update(weight: torch.Tensor) -> None:
        assert weight.grad is not None
        weight.data.sub_(0.1 * weight.grad * M)

    def train() -> torch.Tensor:
        weight = leaf(M)
        weight.register_post_accumulate_grad_hook(update)
        (weight * 3.0).float().sum().backward()
        return weight.detach()

    expected = train()
    hmp.convert()
    assert torch.equal(train(), expected)


@pytest.mark.parametrize("how", ["step", "disable_casts"])
def test_an_optimizer_that_steps_inside_of_the_backward_steps_in_float32(how: str) -> None:
    def train(inside: bool) -> list[torch.Tensor]:
        model = small_layers()
        optimizers = {weight: torch.optim.Adam([weight], lr=0.1) for weight in model.parameters()}

        def step(weight: torch.Tensor) -> None:
            if how == "step":
                optimizers[weight].step()
            else:
                with hmp.disable_casts():
                    weight.data.sub_(torch.mul(weight.grad, 0.1))
            weight.grad = None

        for _ in range(2):
            handles = [one.register_post_accumulate_grad_hook(step) for one in optimizers if inside]
            model(M).float().pow(2).sum().backward()
            for handle in handles:
                handle.remove()
            for one in [] if inside else optimizers:
                step(one)
        return [one.detach() for one in model.parameters()]

    hmp.convert()
    assert_same(train(inside=True), train(inside=False))


def test_anomaly_mode_finds_the_operation_and_changes_nothing(converted: Converter) -> None:
    converted(bf16=["mm", "sqrt"])
    plain, watched = leaf(M), leaf(M)
    torch.mm(plain, N).sum().backward()
    with warnings.catch_warnings(), torch.autograd.detect_anomaly(check_nan=True):
        warnings.simplefilter("ignore")
        torch.mm(watched, N).sum().backward()
        assert_same(plain.grad, watched.grad)
        x = torch.zeros(2, requires_grad=True)
        with pytest.raises(RuntimeError, match="SqrtBackward"):
            (torch.sqrt(x) * 0).sum().backward()
