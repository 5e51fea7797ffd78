"""fully_shard and FullyShardedDataParallel on two ranks: the weights are those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.lists import write_list
from helpers.ranks import on_two_ranks
from helpers.training_on_ranks import (
    STEPS,
    Batch,
    adamw,
    backward,
    batch,
    mesh,
    network,
    step,
    train,
    train_by_hand,
    weights,
)

BF16, FP32 = torch.bfloat16, torch.float32


def sharded(**options: Any) -> fsdp.FSDPModule:
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fsdp.fully_shard(layer, mesh=mesh(), **options)
    return fsdp.fully_shard(model, mesh=mesh(), **options)


@pytest.mark.parametrize("convert_first", [True, False], ids=["convert-shard", "shard-convert"])
@on_two_ranks
def test_fully_sharded_training_is_the_same(convert_first: bool) -> None:
    if convert_first:
        hmp.convert()
    model = sharded()
    hmp.convert()
    train(model)
    assert_same(weights(model), train_by_hand())


@pytest.mark.parametrize("named", [False, True], ids=["any module", "the model"])
@on_two_ranks
def test_fully_sharded_training_is_the_same_where_only_modules_are_lowered(named: bool) -> None:
    model = sharded()
    hmp.convert(within=model if named else "modules")
    train(model)
    hmp.convert(within="modules")
    assert_same(weights(model), train_by_hand())


@on_two_ranks
def test_fully_sharded_gradients_accumulate_without_sync() -> None:
    hmp.convert()
    model = sharded()
    optimizer = adamw(model)
    for number in range(STEPS):
        model.set_requires_gradient_sync(False)
        backward(model, batch(dist.get_rank(), 2 * number))
        model.set_requires_gradient_sync(True)
        backward(model, batch(dist.get_rank(), 2 * number + 1))
        step(optimizer)
    assert_same(weights(model), train_by_hand(micro=2))


@on_two_ranks
def test_fully_sharded_in_bf16_is_the_same_as_weights_cast_by_hand() -> None:
    hmp.convert()
    model = sharded(mp_policy=fsdp.MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=FP32))

    def cast_by_hand(model: nn.Module, of: Batch) -> None:
        lowered = {name: one.bfloat16() for name, one in model.named_parameters()}
        result = torch.func.functional_call(model, lowered, of[0].bfloat16())
        F.cross_entropy(result, of[1]).backward()

    train(model)
    assert_same(weights(model), train_by_hand(run=cast_by_hand))


@on_two_ranks
def test_state_of_a_fully_sharded_model_is_float32_and_loads_again() -> None:
    hmp.convert()
    model = sharded()
    train(model)
    shards = get_model_state_dict(model)
    assert all(isinstance(one, DTensor) and one.dtype is FP32 for one in shards.values())
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    assert_same(list(whole.values()), train_by_hand())
    again = sharded()
    set_model_state_dict(again, shards)
    assert_same(weights(again), weights(model))
    alone = network()
    alone.load_state_dict(whole)
    assert_same(weights(alone), weights(model))


@on_two_ranks
def test_clipping_the_gradients_of_a_fully_sharded_model_is_exact() -> None:
    hmp.convert()
    model, alone = sharded(), network()
    for one in (model, alone):
        backward(one, batch(0))
        with hmp.disable_casts():
            torch.nn.utils.clip_grad_norm_(one.parameters(), 0.1)
    found = [one.grad.full_tensor() for one in model.parameters()]
    torch.testing.assert_close(found, [one.grad for one in alone.parameters()])


@on_two_ranks
def test_fully_sharded_training_with_views_in_the_list_is_the_same(tmp_path: Path) -> None:
    # An operation by which torch's own code makes and splits parameters.
    hmp.convert(bf16_file_path=write_list(tmp_path / f"{dist.get_rank()}.txt", ["linear", "view"]))
    model = sharded()
    assert {one.dtype for one in model.parameters()} == {FP32}
    train(model)
    assert_same(weights(model), train_by_hand())
