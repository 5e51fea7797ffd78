"""Reductions over ranks: the audit names the hook or the policy that rounds gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from habana_mp import hmp
from helpers.broken_assumptions import broken
from helpers.ranks import on_two_ranks
from helpers.training_on_ranks import batch, mesh, network

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
Policy = fsdp.MixedPrecisionPolicy


def parallel(hook: Any = None, dtype: torch.dtype = FP32) -> nn.Module:
    model = DistributedDataParallel(network().to(dtype))
    if isinstance(hook, dist.BuiltinCommHookType):
        model._register_builtin_comm_hook(hook)
    elif hook is not None:
        model._check_comm_hook = lambda _: None  # it refuses bfloat16 without CUDA, which gloo can sum
        model.register_comm_hook(None, hook)
    return model


def sharded(dtype: torch.dtype = FP32, **policy: Any) -> nn.Module:
    model = network().to(dtype)
    fsdp.fully_shard(model[0], mesh=mesh(), mp_policy=Policy(**policy))
    return fsdp.fully_shard(model, mesh=mesh(), mp_policy=Policy(**policy))


def flat(**policy: Any) -> nn.Module:
    mixed = fsdp.MixedPrecision(**policy) if policy else None
    return fsdp.FullyShardedDataParallel(network(), mixed_precision=mixed, device_id=torch.device("cpu"))


#: The model, the dtypes of its reductions, and the beginning and the end of the finding.
CASES: dict[str, tuple[Callable[[], nn.Module], set[str], str, str]] = {
    "DDP": (parallel, {"float32"}, "", ""),
    "DDP, bf16_compress_hook": (
        lambda: parallel(default_hooks.bf16_compress_hook),
        {"bfloat16"},
        "bf16_compress_hook rounds the gradients of the model to bfloat16",
        "`model.register_comm_hook(..., bf16_compress_hook)`",
    ),
    "DDP, fp16_compress_wrapper": (
        lambda: parallel(default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
        {"float16"},
        "fp16_compress_wrapper",
        "_hook)`",
    ),
    "DDP, FP16_COMPRESS": (
        lambda: parallel(dist.BuiltinCommHookType.FP16_COMPRESS),
        {"float16"},
        "",
        "FP16_COMPRESS)`",
    ),
    "FSDP": (sharded, {"float32"}, "", ""),
    "FSDP, computes in bfloat16": (lambda: sharded(param_dtype=BF16, reduce_dtype=FP32), {"float32"}, "", ""),
    "FSDP, reduces in bfloat16": (
        lambda: sharded(param_dtype=BF16, reduce_dtype=BF16),
        {"bfloat16"},
        "MixedPrecisionPolicy rounds the gradients of the model and 1 more to bfloat16",
        "`MixedPrecisionPolicy(..., reduce_dtype=torch.float32)`",
    ),
    "FullyShardedDataParallel": (flat, {"float32"}, "", ""),
    "FullyShardedDataParallel, reduces in bfloat16": (
        lambda: flat(reduce_dtype=BF16),
        {"bfloat16"},
        "MixedPrecision rounds the gradients of the model to bfloat16",
        "`MixedPrecision(..., reduce_dtype=torch.float32)`",
    ),
    "FSDP, reduces in the dtype of its weights": (
        lambda: sharded(param_dtype=BF16),
        {"bfloat16"},
        "MixedPrecisionPolicy",
        "`MixedPrecisionPolicy(..., reduce_dtype=torch.float32)`",
    ),
}


@pytest.mark.parametrize("name", CASES)
@on_two_ranks
def test_reductions_in_lower_precision_are_found(name: str) -> None:
    make, dtypes, begin, end = CASES[name]
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    F.cross_entropy(model(batch(dist.get_rank())[0]).float(), batch(dist.get_rank())[1]).backward()
    found = hmp.audit(model, optimizer)
    assert {one.dtype for one in found.rows if one.kind == "reductions"} == dtypes
    assert found.healthy == (not end)
    assert [one.kind for one in found.findings] == ["lower reduction"] * bool(end)
    for one in found.findings:
        assert one.text.startswith(begin)
        assert one.text.endswith(end)


@on_two_ranks
def test_the_updates_of_a_shard_are_those_of_its_rank() -> None:
    model = sharded(BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x, y = batch(0)  # the same on both ranks, which need not call the audit together
    F.cross_entropy(model(x.bfloat16()).float(), y).backward()
    if dist.get_rank() == 0:
        found = hmp.audit(model, optimizer)
        before = [one.to_local().clone() for one in model.parameters()]
    optimizer.step()
    if dist.get_rank() == 0:
        shares = [one.lost for one in found.rows if one.kind == "lost updates"]
        lost = sum(int((one.to_local() == old).sum()) for one, old in zip(model.parameters(), before, strict=True))
        whole = sum(one.numel() for one in before)
        assert min(shares) <= lost / whole <= max(shares)
        assert max(shares) > 0.1


@on_two_ranks
def test_without_its_assumption_no_reduction_is_shown() -> None:
    with broken("torch.reductions"):
        found = hmp.audit(parallel(default_hooks.bf16_compress_hook))
    assert found.healthy
    assert not [one for one in found.rows if one.kind == "reductions"]
