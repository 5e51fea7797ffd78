"""Steps that a diagnosis repeats: gradient scalers must not change their state in them, and forwards of
DistributedDataParallel must not communicate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import PackedSequence

from habana_mp.patches.tools.exchange import Exchanged
from habana_mp.patches.tools.in_float32 import is_packed_sequence
from habana_mp.patches.tools.pytree import tree_map


@contextmanager
def scalers_end_steps(is_looking: Callable[[], bool], ends: type[BaseException]) -> Iterator[None]:
    """A block in which a scaler's first method after the backward raises this exception, before it does anything."""

    def ending(former: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_looking() and self.is_enabled():
                raise ends
            return former(self, *arguments, **keywords)

        return method

    with Exchanged() as exchanged:
        for name in ("unscale_", "step"):  # they change the state, or gradients
            exchanged.exchange(torch.amp.GradScaler, name, ending(vars(torch.amp.GradScaler)[name]))
        yield


@contextmanager
def ddp_only_calls_its_module(is_looking: Callable[[], bool]) -> Iterator[None]:
    """A block in which the forward moves its inputs to the module's device and calls the module. It exchanges no buffer
    and prepares no sum of gradients, whatever `no_sync()` and the flags of the model say."""
    former: Callable[..., Any] = DistributedDataParallel.forward

    def forward(self: Any, *inputs: Any, **keywords: Any) -> Any:
        if not is_looking():
            return former(self, *inputs, **keywords)
        if self.device_ids:
            device = torch.device(self.device_type, self.device_ids[0])
            inputs, keywords = tree_map(lambda one: _moved(one, device), (inputs, keywords), is_leaf=is_packed_sequence)
        return self.module(*inputs, **keywords)

    with Exchanged() as exchanged:
        exchanged.exchange(DistributedDataParallel, "forward", forward)
        yield


def _moved(value: Any, device: Any) -> Any:
    return value.to(device) if isinstance(value, (torch.Tensor, PackedSequence)) else value
