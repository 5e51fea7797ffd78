"""Forwards of DistributedDataParallel, which must not communicate in a step that a diagnosis repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import PackedSequence

from habana_mp.patches.tools.exchange import Exchanged
from habana_mp.patches.tools.pytree import tree_map


@contextmanager
def ddp_only_calls_its_module(is_looking: Callable[[], bool]) -> Iterator[None]:
    """A block in which the forward moves its inputs to the module's device and calls the module. It exchanges no buffer
    and prepares no sum of gradients, whatever `no_sync()` and the flags of the model say."""
    exchanged = Exchanged()
    former: Callable[..., Any] = DistributedDataParallel.forward

    def forward(self: Any, *inputs: Any, **keywords: Any) -> Any:
        if not is_looking():
            return former(self, *inputs, **keywords)
        if self.device_ids:
            device = torch.device(self.device_type, self.device_ids[0])
            inputs, keywords = tree_map(lambda one: _moved(one, device), (inputs, keywords), is_leaf=_is_packed)
        return self.module(*inputs, **keywords)

    try:
        exchanged.exchange(DistributedDataParallel, "forward", forward)
        yield
    finally:
        exchanged.put_back()


def _is_packed(value: Any) -> bool:
    return isinstance(value, PackedSequence)


def _moved(value: Any, device: Any) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) or _is_packed(value) else value
