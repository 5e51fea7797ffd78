"""Collectives of torch.distributed: a weight that one of them writes is seen to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.multiprocessing
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn

from habana_mp import hmp
from habana_mp.patches.torch import uncounted_writers
from helpers.ranks import on_two_ranks
from helpers.training_on_ranks import batch

COLLECTIVES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "broadcast": lambda w, other: dist.broadcast(w if dist.get_rank() == 0 else other, 1),
    "all_reduce": lambda w, other: dist.all_reduce(w.detach() if dist.get_rank() == 0 else other),
    "all_gather": lambda w, other: dist.all_gather([torch.empty_like(w), w.detach()], other),
    "scatter": lambda w, other: dist.scatter(w.detach(), [other, w] if dist.get_rank() == 1 else None, 1),
    "receive": lambda w, other: dist.recv(w.detach(), 1) if dist.get_rank() == 0 else dist.send(other, 0),
    "of the backend": lambda w, other: backend()
    .broadcast([w if dist.get_rank() == 0 else other], from_second())
    .wait(),
}


def backend() -> Any:
    return dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))


def from_second() -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank = 1
    return options


@pytest.mark.parametrize("way", COLLECTIVES)
@on_two_ranks
def test_a_weight_that_a_collective_writes_is_seen_to_change(way: str) -> None:
    """Written past autograd, and in a single element."""
    hmp.convert()
    x = batch(0)[0]
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        torch.manual_seed(0)
        layer, other = nn.Linear(16, 16), torch.zeros(16, 16)
        with torch.no_grad():
            other.copy_(layer.weight)
            other[5, 6] += 1
        for _ in range(2):
            with mode():
                before = [layer(x) for _ in range(3)][-1]
            with torch.no_grad():
                COLLECTIVES[way](layer.weight, other)
            with mode():
                after = layer(x)
            with hmp.disable_casts():
                wanted = F.linear(x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16())
            assert torch.equal(after, wanted)
            if dist.get_rank() == 0:
                assert not torch.equal(after, before)
            other[5, 6] += 1


#: Methods of ProcessGroup that write into no tensor that they are given.
HARMLESS = {
    "abort", "BackendType", "barrier", "bound_device_id", "boxed", "CUSTOM", "get_group_store", "GLOO", "group_desc",
    "group_name", "merge_remote_group", "monitored_barrier", "MPI", "name", "NCCL", "Options", "options", "rank",
    "send", "set_timeout", "shutdown", "size", "split_group", "UCC", "unbox", "UNDEFINED",
    "use_pg_for_symm_mem_rendezvous", "XCCL",
    # of a backend
    "allocate_tensor", "eager_connect_single_device", "mem_allocator", "memory_stats", "resume",
    "setUsePgForSymmMemRendezvous", "shrink", "supports_coalescing", "supports_shrinking", "supports_splitting",
    "supports_tensor_alloc", "supports_time_estimate", "suspend",
    # torch 2.15; a window is for memory that others write to by themselves, on accelerators only
    "get_backend", "get_reconfigure_handle", "new_window", "reconfigure", "register_abort_hook", "register_post_hook",
    "register_pre_hook", "supports_abort_hooks", "supports_completion_hooks", "supports_reconfigure",
    "supports_window", "unregister_abort_hook", "unregister_post_hook", "unregister_pre_hook",
}  # fmt: skip


def test_every_collective_that_this_torch_has_is_tapped() -> None:
    known = HARMLESS | set(uncounted_writers.UNCOUNTED_COLLECTIVES)
    for group in (torch.distributed.ProcessGroup, torch._C._distributed_c10d.Backend):
        public = {name for name in dir(group) if not name.startswith("_")}
        assert public <= known, "does it write into its tensors?"
