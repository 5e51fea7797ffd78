"""Hooks on tensors and on nodes of the graph: what they see, what is cast in them, and what they may change."""

from __future__ import annotations

import warnings

import pytest
import torch

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.gradients import leaf, small_layers
from helpers.lists import Converter
from helpers.probes import BF16, FP32, M, N


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


def test_covered_operations_in_a_hook_are_cast_and_the_gradient_is_still_float32(converted: Converter) -> None:
    x, inside = leaf(M), []

    def hook(grad: torch.Tensor) -> torch.Tensor:
        inside.append(torch.mm(grad, N))
        return inside[-1].float()

    x.register_hook(hook)
    converted(bf16=["mm"])
    torch.mm(x, N).sum().backward()
    assert inside[0].dtype is BF16
    assert torch.equal(x.grad, inside[0].float())


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
