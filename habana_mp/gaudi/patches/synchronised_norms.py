"""``torch.nn.SyncBatchNorm`` on a CPU, for which torch has no kernel."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from habana_mp.common.ledger import Assumption, holds
from habana_mp.gaudi.patches.names import Meaning
from habana_mp.patches.tools.code_exchange import Replacement
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.scopes.disable import disable_casts

_FORWARD = Assumption(
    "torch.sync-batch-norm",
    assumed="torch.nn.SyncBatchNorm.forward takes the module and `input`",
    check="its parameters",
    otherwise="torch refuses SyncBatchNorm on a CPU",
)


class HpuSyncBatchNorm(Patch):
    """Computes the statistics of all processes by differentiable sums, where the device is the CPU."""

    def __init__(self, meaning: Meaning) -> None:
        self._meaning = meaning
        self._replacement: Replacement | None = None

    def install(self, settings: Settings) -> None:
        forward: Any = torch.nn.SyncBatchNorm.forward
        if self._replacement is None and holds(_FORWARD, lambda: forward.__code__.co_varnames[:2] == ("self", "input")):
            self._replacement = Replacement(forward, self._run)
            self._replacement.install()

    def uninstall(self) -> None:
        if self._replacement is not None:
            self._replacement.uninstall()
            self._replacement = None

    def _run(self, original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        module, given = (*arguments, *keywords.values())
        synchronises = module.training and dist.is_available() and dist.is_initialized()
        if self._meaning.real.type != "cpu" or given.device.type != "cpu" or not synchronises:
            return original(module, given)
        module._check_input_dim(given)
        momentum = module.momentum
        tracks = module.track_running_stats
        if tracks:
            module.num_batches_tracked.add_(1)
            momentum = 1 / module.num_batches_tracked.item() if momentum is None else momentum
        mean, var = (module.running_mean, module.running_var) if tracks else (None, None)
        group = module.process_group or dist.group.WORLD
        if dist.get_world_size(group) == 1:
            return F.batch_norm(given, mean, var, module.weight, module.bias, True, momentum or 0.0, module.eps)
        with disable_casts():
            return _normalise(given, module, mean, var, momentum, group)


class _Sum(torch.autograd.Function):
    """The sum over all processes. Its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Any) -> Tensor:
        ctx.group = group
        result = value.clone()
        dist.all_reduce(result, group=group)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        result = gradient.clone()
        dist.all_reduce(result, group=ctx.group)
        return result, None


def _normalise(
    given: Tensor, module: Any, mean: Tensor | None, var: Tensor | None, momentum: Any, group: Any
) -> Tensor:
    x = given.float() if given.dtype in (torch.bfloat16, torch.float16) else given
    shape = (1, -1, *[1] * (x.ndim - 2))
    others = [dim for dim in range(x.ndim) if dim != 1]
    count = torch.tensor([x.numel() / x.shape[1]], dtype=x.dtype)
    dist.all_reduce(count, group=group)
    batch_mean = _Sum.apply(x.sum(others), group) / count  # type: ignore[no-untyped-call]  # torch's has no types
    centred = x - batch_mean.view(shape)
    batch_var = _Sum.apply(centred.square().sum(others), group) / count  # type: ignore[no-untyped-call]  # torch's has no types
    if mean is not None and var is not None:
        with torch.no_grad():
            mean.lerp_(batch_mean.to(mean.dtype), momentum)
            var.lerp_((batch_var * count / (count - 1)).to(var.dtype), momentum)
    result = centred * (batch_var + module.eps).rsqrt().view(shape)
    if module.weight is not None:
        result = result * module.weight.to(x.dtype).view(shape)
        result = result + module.bias.to(x.dtype).view(shape)
    normalised: Tensor = result.to(given.dtype)
    return normalised
