"""Copies of weights in lower precision that a step writes along, and kept casts that a step refreshes."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from habana_mp import hmp, optim
from habana_mp.patches.torch import kernel_steps
from helpers.optimizers import (
    CLASSES,
    SHAPES,
    assert_same_optimizers,
    every_class,
    every_option,
    make,
    parameters,
    set_gradients,
)

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[Tensor, Tensor]]:
    """Gives weights lower tensors; what was told of as written is under the key None."""

    def give(params: list[Any], kept: dict[Tensor, Tensor]) -> list[Tensor]:
        written: list[Tensor] = []
        monkeypatch.setattr(kernel_steps, "casts_to_write", lambda some: [kept.get(param) for param in some])
        monkeypatch.setattr(kernel_steps, "were_written", lambda params, _: written.extend(params))
        return written

    return give


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_option
def test_the_copy_is_the_weights_cast_bit_for_bit(
    name: str, options: dict[str, Any], dtype: torch.dtype, copies: Any
) -> None:
    params = parameters([*SHAPES, (5, 7)])
    kept = {param: torch.full_like(param, 7, dtype=dtype) for param in params[1:]}
    written = copies(params, kept)
    optimizer = make(CLASSES[name][0], params, options)
    for step in range(2):
        set_gradients(params, step)
        optimizer.step()
        for param, lower in kept.items():
            assert torch.equal(lower.view(torch.int16), param.detach().to(dtype).view(torch.int16))
    assert written == params[1:] * 2


@every_class
def test_the_copy_of_weights_beyond_the_caches_is_the_weights_cast(name: str, copies: Any) -> None:
    params = parameters([(1 << 23,), (1027, 31)])
    kept = {param: torch.empty_like(param, dtype=torch.bfloat16) for param in params}
    copies(params, kept)
    set_gradients(params, 0)
    CLASSES[name][0](params, lr=0.01).step()
    for param, lower in kept.items():
        assert torch.equal(lower.view(torch.int16), param.detach().bfloat16().view(torch.int16))


def test_the_copys_version_counts_the_writes(copies: Any) -> None:
    params = parameters()
    kept = {param: param.detach().bfloat16() for param in params}
    copies(params, kept)
    before = [lower._version for lower in kept.values()]
    set_gradients(params, 0)
    optim.AdamW(params).step()
    assert [lower._version for lower in kept.values()] == [version + 1 for version in before]


@pytest.mark.parametrize(
    "unfit",
    [
        lambda param: torch.zeros(3, dtype=torch.bfloat16),
        lambda param: torch.zeros_like(param),
        lambda param: torch.zeros(param.shape[::-1], dtype=torch.bfloat16).t(),
        lambda param: torch.zeros_like(param, dtype=torch.bfloat16).to_sparse(),
        lambda param: torch.zeros_like(param, dtype=torch.bfloat16, device="meta"),
    ],
)
def test_a_copy_that_does_not_lie_as_the_weight_is_left_alone(unfit: Any, copies: Any) -> None:
    params = parameters([(64, 48)])
    kept = {params[0]: unfit(params[0])}
    before, version = copy.deepcopy(kept[params[0]]), kept[params[0]]._version
    written = copies(params, kept)
    set_gradients(params, 0)
    optimizer = optim.AdamW(params)
    optimizer.step()
    assert written == []
    assert kept[params[0]]._version == version
    if not before.is_meta:
        assert torch.equal(kept[params[0]].to_dense(), before.to_dense())
    others = parameters([(64, 48)])
    set_gradients(others, 0)
    theirs = torch.optim.AdamW(others, fused=True)
    theirs.step()
    assert_same_optimizers(optimizer, theirs)


def test_nothing_is_written_where_gradients_are_infinite(copies: Any) -> None:
    params = parameters()
    kept = {param: torch.full_like(param, 7, dtype=torch.bfloat16) for param in params}
    written = copies(params, kept)
    optimizer = optim.AdamW(params, fused=True)
    set_gradients(params, 0)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(1.0)
    optimizer.step()
    assert written == []
    assert all((lower == 7).all() for lower in kept.values())


@every_class
def test_a_step_while_converted_is_the_same(name: str) -> None:
    results = []
    for kind in CLASSES[name]:
        params = parameters()
        optimizer = kind(params, lr=0.1, fused=True)
        hmp.convert("O1")
        for step in range(2):
            set_gradients(params, step)
            optimizer.step()
        hmp.restore()
        results.append(optimizer)
    assert_same_optimizers(*results)


def kept_weight() -> tuple[torch.nn.Parameter, Tensor]:
    """A weight whose cast is kept, with a gradient; and an input for it."""
    weight, x = torch.nn.Parameter(torch.randn(128, 128)), torch.randn(4, 128)
    for _ in range(2):
        torch.nn.functional.linear(x, weight).sum().backward()
    return weight, x


def assert_cast_is_fresh(weight: torch.nn.Parameter, x: Tensor) -> None:
    with torch.no_grad():
        ours = torch.nn.functional.linear(x, weight)
        with hmp.disable_casts():
            plain = torch.nn.functional.linear(x.bfloat16(), weight.bfloat16())
    assert torch.equal(ours, plain)


@every_class
def test_a_write_of_another_thread_during_a_step_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = kernel_steps.were_written
    hmp.convert()
    weight, x = kept_weight()
    other = torch.optim.SGD([weight], lr=0.5)

    def write_besides(params: list[Tensor], lowers: list[Tensor]) -> None:
        assert len(lowers) == 1
        thread = threading.Thread(target=other.step)
        thread.start()
        thread.join()
        written(params, lowers)

    monkeypatch.setattr(kernel_steps, "were_written", write_besides)
    CLASSES[name][0]([weight], lr=0.1).step()
    assert_cast_is_fresh(weight, x)


@every_class
def test_a_write_is_counted_after_it_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cast that another thread makes between the two would pass for one of the new values."""
    count = kernel_steps.count_writes
    weight, _ = kept_weight()
    before, versions = weight.detach().clone(), []

    def look_first(*given: Any) -> None:
        versions.append(weight._version)
        assert not torch.equal(weight, before)
        count(*given)

    monkeypatch.setattr(kernel_steps, "count_writes", look_first)
    CLASSES[name][0]([weight], lr=0.1).step()
    assert versions == [weight._version - 1]


def test_a_hook_of_somebody_else_may_write_after_a_step_without_a_word() -> None:
    factors = torch.ones(128, 128)
    factors[1] = 3.0

    def write_unseen(*_: Any) -> None:
        below_autograd = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        torch.ops.aten.mul_.Tensor.redispatch(below_autograd, weight, factors)

    handle = register_optimizer_step_post_hook(write_unseen)
    try:
        hmp.convert()
        weight, x = kept_weight()
        with torch.no_grad():
            optim.SGD([weight], lr=0.1).step()
    finally:
        handle.remove()
    assert_cast_is_fresh(weight, x)
