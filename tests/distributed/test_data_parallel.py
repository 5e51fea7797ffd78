"""DistributedDataParallel on two ranks: the weights are those that the same casts give in one process, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.multiprocessing
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.models import small_network
from helpers.ranks import on_two_ranks
from helpers.training_on_ranks import (
    STEPS,
    adamw,
    assert_ranks_agree,
    backward,
    batch,
    gradients,
    network,
    step,
    train,
    train_by_hand,
    weights,
)

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

# ---- two ranks -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("dtype", [BF16, FP16])
@on_two_ranks
def test_two_ranks_train_as_under_torch_autocast(dtype: torch.dtype) -> None:
    def step(region: Any) -> list[torch.Tensor]:
        net = DistributedDataParallel(small_network())
        torch.manual_seed(dist.get_rank())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=dtype is FP16)
        for _ in range(3):
            optimizer.zero_grad()
            with region:
                loss = F.cross_entropy(net(torch.randn(8, 8)), torch.arange(8) % 4)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return [loss, *net.parameters()]

    ours = step(hmp.autocast("cpu", dtype))
    assert_same(ours, step(torch.autocast("cpu", dtype)))
    weights = [torch.empty_like(ours[1]) for _ in range(2)]
    dist.all_gather(weights, ours[1].detach())
    assert torch.equal(weights[0], weights[1])


# ---- DistributedDataParallel ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [False, True], ids=["any module", "the model"])
@on_two_ranks
def test_ddp_trains_the_same_where_only_modules_are_lowered(named: bool) -> None:
    inner = network()
    hmp.convert(within=inner if named else "modules")
    model = DistributedDataParallel(inner)
    train(model)
    hmp.convert(within="modules")
    assert_same(weights(model), train_by_hand())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"static_graph": True},
        {"bucket_cap_mb": 1e-3, "gradient_as_bucket_view": True, "static_graph": True},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
@on_two_ranks
def test_ddp_trains_with_the_mean_of_both_gradients(options: dict[str, Any]) -> None:
    hmp.convert()
    model = DistributedDataParallel(network(), **options)
    train(model)
    assert_same(weights(model), train_by_hand())
    assert_ranks_agree(weights(model))


@on_two_ranks
def test_ddp_accumulates_gradients_without_sync() -> None:
    hmp.convert()
    model = DistributedDataParallel(network())
    optimizer = adamw(model)
    for number in range(STEPS):
        with model.no_sync():
            backward(model, batch(dist.get_rank(), 2 * number))
        backward(model, batch(dist.get_rank(), 2 * number + 1))
        step(optimizer)
    assert_same(weights(model), train_by_hand(micro=2))


class Branches(nn.Module):
    """Uses one of its heads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = nn.ModuleList(nn.Linear(16, 8) for _ in range(3))

    def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
        return self.heads[head](x)


@on_two_ranks
def test_ddp_finds_the_parameters_that_a_rank_does_not_use() -> None:
    hmp.convert()
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    x, y = batch(dist.get_rank())
    F.cross_entropy(model(x, dist.get_rank()), y).backward()
    for head in range(2):
        alone = Branches()
        x, y = batch(head)
        F.cross_entropy(alone(x, head), y).backward()
        with hmp.disable_casts():
            expected = [one.grad / 2 for one in alone.heads[head].parameters()]
        assert_same([one.grad for one in model.module.heads[head].parameters()], expected)
    assert all(one.grad is None for one in model.module.heads[2].parameters())


@on_two_ranks
def test_ddp_hands_out_running_statistics_in_float32() -> None:
    hmp.convert()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)))
    alone = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8))
    alone.load_state_dict(model.module.state_dict())
    for number in range(2):
        model(batch(dist.get_rank(), number)[0])
        alone(batch(0, number)[0])
    model.eval()(batch(0)[0])  # each forward begins with the buffers of rank 0
    norm, expected = model.module[1], alone[1]
    assert norm.running_mean.dtype is norm.running_var.dtype is FP32
    assert_same([norm.running_mean, norm.running_var], [expected.running_mean, expected.running_var])


@on_two_ranks
def test_a_hook_that_compresses_gradients_rounds_them_and_nothing_else() -> None:
    hmp.convert()
    model = DistributedDataParallel(network())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    backward(model, batch(dist.get_rank()))
    first, second = (gradients(network(), batch(rank)) for rank in range(2))
    with hmp.disable_casts():
        expected = [(a.half() / 2 + b.half() / 2).float() for a, b in zip(first, second, strict=True)]
    assert_same([one.grad for one in model.parameters()], expected)
