"""``habana_frameworks.torch.core``."""

from __future__ import annotations

from typing import Any

from .. import hpu
from .. import utils as step_closure
from ..distributed import hccl
from ..utils import do_nothing, is_enabled_weight_permute_pass, is_lazy

__all__ = [
    "enable_weight_permute_pass",
    "get_device_count",
    "hccl",
    "hpu",
    "hpu_inference_initialize",
    "hpu_inference_set_env",
    "hpu_initialize",
    "hpu_set_env",
    "hpu_set_inference_env",
    "hpu_teardown_inference_env",
    "is_enabled_weight_permute_pass",
    "is_lazy",
    "mark_step",
    "step_closure",
]


def mark_step(device_str: str = "", sync: bool = False) -> None:
    """Waits for all operations if ``sync`` is true. Gaudi gathers operations and runs them here; torch has started each
    one when it was called."""
    if sync:
        hpu.synchronize()


def hpu_initialize(*_: Any, **__: Any) -> None:
    """Makes torch initialise the device now. A model needs no preparation."""
    hpu.init()


hpu_inference_initialize = hpu_initialize
hpu_set_env = hpu_set_inference_env = hpu_inference_set_env = hpu_teardown_inference_env = do_nothing
enable_weight_permute_pass = do_nothing
get_device_count = hpu.device_count
