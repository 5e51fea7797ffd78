"""Norms and embeddings: statistics in float32, weights of a lower model, and what has no kernel."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import BF16, FP16, FP32, M, N


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


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), (6, 4)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), (2, 4, 5, 5)),
    "BatchNorm2d without momentum": (lambda: nn.BatchNorm2d(4, momentum=None), (2, 4, 5, 5)),
    "BatchNorm3d without weights": (lambda: nn.BatchNorm3d(4, affine=False), (2, 4, 3, 3, 3)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (2, 4, 5, 5)),
}


@each("name", NORMS)
@each("training", [True, False])
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


@each("name", NORMS)
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


@each("order", [2, -2, "nuc", "fro", 1, None])
def test_a_norm_without_a_kernel_is_computed_in_float32(converted: Converter, order: Any) -> None:
    x = torch.linspace(-1, 1, 16).reshape(4, 4).bfloat16()
    expected = torch.linalg.norm(x.float(), order)
    without_kernel = order in (2, -2, "nuc")
    converted()
    norm = torch.linalg.norm(x, order)
    assert norm.dtype is (FP32 if without_kernel else BF16)
    assert torch.allclose(norm.float(), expected, rtol=2**-7)
