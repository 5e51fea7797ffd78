"""``habana_frameworks.torch.core``."""

from __future__ import annotations

from typing import Any

from .. import hpu
from ..distributed import hccl

__all__ = [
    "hccl",
    "hpu",
    "hpu_inference_initialize",
    "hpu_initialize",
    "hpu_set_env",
    "is_enabled_weight_permute_pass",
    "mark_step",
]


def mark_step(device_str: str = "", sync: bool = False) -> None:
    """Runs gathered operations. Here each one runs, or starts, when it is called; ``sync=True`` waits for all."""
    if sync:
        hpu.synchronize()


def hpu_set_env(*_: Any, **__: Any) -> None:
    """Does nothing: there is nothing to set."""


def hpu_initialize(*_: Any, **__: Any) -> None:
    """Lets torch initialise the device now. Nothing else needs preparation."""
    hpu.init()


def hpu_inference_initialize(model: Any = None, *_: Any, **__: Any) -> None:
    """Lets torch initialise the device now. The model needs no preparation."""
    hpu.init()


def is_enabled_weight_permute_pass() -> bool:
    """True: the script must not permute weights, since torch's kernels use them unchanged."""
    return True
