"""Tensor parallelism on two ranks, and distributed tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.multiprocessing
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from habana_mp import _core, hmp
from helpers.comparing import assert_same
from helpers.ranks import on_two_ranks
from helpers.training_on_ranks import STEPS, assert_near, assert_ranks_agree, batch, mesh, network, weights

BF16, FP32 = torch.bfloat16, torch.float32


PLANS: dict[str, Callable[[], dict[str, Any]]] = {
    "columns and rows": lambda: {
        "0": ColwiseParallel(output_layouts=Replicate()),
        "3": ColwiseParallel(),
        "5": RowwiseParallel(),
    },
    "sequence": lambda: {
        "0": ColwiseParallel(output_layouts=Shard(0)),
        "1": SequenceParallel(sequence_dim=0),
        "2": PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=Replicate()),
        "3": ColwiseParallel(),
        "5": RowwiseParallel(),
    },
}


@pytest.mark.parametrize("plan", PLANS)
@on_two_ranks
def test_tensor_parallel_training_agrees_with_one_process(plan: str) -> None:
    hmp.convert()
    model, alone = network(), network()
    parallelize_module(model, mesh(), PLANS[plan]())
    assert sum(isinstance(one, DTensor) for one in model.parameters()) >= 6
    assert_same(weights(model), weights(alone))
    # Adam would make a whole step of a gradient's last bit.
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, alone)]
    for number in range(STEPS):
        for one, optimizer in zip((model, alone), optimizers, strict=True):
            one.zero_grad()
            F.cross_entropy(one(batch(0, number)[0]), batch(0, number)[1]).backward()
            with hmp.disable_casts():
                optimizer.step()
        for one, other in zip(model.parameters(), alone.parameters(), strict=True):
            grad = one.grad.full_tensor() if isinstance(one.grad, DTensor) else one.grad
            assert_near([grad], [other.grad], 0.03)
    assert_near(weights(model), weights(alone), 0.01)
    assert_ranks_agree(weights(model))


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@on_two_ranks
def test_distributed_tensors_are_cast_as_plain_ones(grad: bool) -> None:
    torch.manual_seed(0)
    size = 300
    x, w = torch.randn(size, size), torch.randn(size, size)
    hmp.convert()
    results = []
    for placed in (None, [Replicate()], [Shard(0)]):
        one, other = x.clone(), w.clone()
        if placed is not None:
            one, other = distribute_tensor(one, mesh(), placed), distribute_tensor(other, mesh(), [Replicate()])
        other.requires_grad_(grad)
        with torch.set_grad_enabled(grad):
            product = torch.relu(one @ other)
            result = F.softmax(product, dim=-1)
        assert isinstance(result, DTensor) is (placed is not None)
        found = [product.detach(), result.detach()]
        if grad:
            with hmp.disable_casts():
                (result * result.detach()).sum().backward()
            found.append(other.grad)
        results.append([one.full_tensor() if isinstance(one, DTensor) else one for one in found])
    expected, replicated, sharded_rows = results
    assert [one.dtype for one in expected] == [BF16, FP32, FP32][: len(expected)]
    if _core.kernels_multiplies_bfloat16():  # else torch sums distributed ones, and the package plain ones
        assert_same(replicated, expected)
        assert_same(sharded_rows[:2], expected[:2])
    assert_near(replicated, expected)
    assert_near(sharded_rows, expected)


@on_two_ranks
def test_mixing_distributed_and_plain_tensors_is_torchs_error() -> None:
    plain = torch.ones(4, 4)
    placed = distribute_tensor(plain, mesh(), [Shard(0)])
    messages = []
    for convert in (hmp.restore, hmp.convert):
        convert()
        with pytest.raises(RuntimeError) as caught:
            torch.mm(placed, plain)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
