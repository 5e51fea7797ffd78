"""The precisions in which ranks sum gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import distributed

from habana_mp.common.ledger import Assumption, holds

_ASSUMED = Assumption(
    "torch.reductions",
    "DistributedDataParallel names its hook in its logging data, and FSDP's modules hold their policy",
    "the attributes of both classes",
    "hmp.audit shows no reductions",
)

_COMPRESSED = {"bf16_compress": torch.bfloat16, "fp16_compress": torch.float16}


class Reduction(NamedTuple):
    """A module whose gradients are summed over ranks."""

    name: str
    dtype: torch.dtype
    #: The hook or the policy that chooses the dtype. It is empty if the gradients choose it.
    chosen_by: str


def reductions(model: torch.nn.Module) -> Iterator[Reduction]:
    """Yields a reduction for each dtype in which a module sums gradients."""
    if not distributed.is_available():
        return
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    def is_known() -> bool:
        return hasattr(DistributedDataParallel, "_get_ddp_logging_data") and hasattr(FSDPModule, "_get_fsdp_state")

    sharded: Any = FSDPModule, FullyShardedDataParallel
    for name, module in model.named_modules():
        if isinstance(module, (DistributedDataParallel, *sharded)) and holds(_ASSUMED, is_known):
            chosen = _of_policy(module) if isinstance(module, sharded) else _of_hook(module)
            own = {one.dtype for one in module.parameters() if one.requires_grad}
            yield from (Reduction(name, *one) for one in ([chosen] if chosen else ((dtype, "") for dtype in own)))


def _of_hook(module: Any) -> tuple[torch.dtype, str] | None:
    hook = str(module._get_ddp_logging_data().get("comm_hook", ""))
    return next(((dtype, hook) for part, dtype in _COMPRESSED.items() if part in hook.lower()), None)


def _of_policy(module: Any) -> tuple[torch.dtype, str] | None:
    policy = module._get_fsdp_state()._mp_policy if hasattr(module, "_get_fsdp_state") else module.mixed_precision
    # Without a dtype of their own, gradients are summed in the dtype of the weights that the forward used.
    dtype = policy.reduce_dtype or policy.param_dtype
    return (dtype, type(policy).__name__) if dtype else None
