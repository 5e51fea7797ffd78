"""Rules by module on two ranks: DDP, FSDP2, FSDP, tensor parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import fsdp
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from habana_mp import hmp
from helpers.ranks import on_two_ranks
from helpers.steered import FP32, LOWERED, STEERED, inputs, network, options_for, precisions
from helpers.training_on_ranks import mesh


def _fully_sharded(model: Any) -> nn.Module:
    for part in (*model.layers, model.left.inner):
        fsdp.fully_shard(part, mesh=mesh())
    return fsdp.fully_shard(model, mesh=mesh())


def _tensor_parallel(model: Any) -> nn.Module:
    return parallelize_module(model, mesh(), {f"layers.{i}.proj": ColwiseParallel() for i in range(2)})


WAYS: dict[str, Callable[[Any], nn.Module]] = {
    "DDP": DistributedDataParallel,
    "FSDP": lambda model: fsdp.FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True),
    "tensor parallel": _tensor_parallel,
    "fully sharded": _fully_sharded,
    "compiled DDP": lambda model: torch.compile(DistributedDataParallel(model), backend="eager"),
}


@pytest.mark.parametrize("how", STEERED)
@pytest.mark.parametrize("way", WAYS)
@on_two_ranks
def test_a_rule_holds_in_a_module_that_is_distributed(way: str, how: str) -> None:
    model = network()
    options = options_for(how, model, "layers.1")
    options = {"preset": "recommended", "results": "as computed", **options}
    hmp.convert(**{**options, "rules": {"softmax": "lower", **(options.get("rules") or {})}})
    called = WAYS[way](model)
    outputs = called(inputs())
    assert precisions(outputs) == [LOWERED, STEERED[how], LOWERED, LOWERED]
    sum(one.float().square().sum() for part in outputs for one in part).backward()
    # FSDP gives each rank a part of all weights, with gradients of those that have values there.
    assert {one.grad.dtype for one in called.parameters() if one.grad is not None} == {FP32}
