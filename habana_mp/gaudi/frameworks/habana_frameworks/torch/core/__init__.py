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
    """Run the operations that were gathered. Here each ran, or was started, when it was called; ``sync=True`` waits."""
    if sync:
        hpu.synchronize()


def hpu_set_env(*_: Any, **__: Any) -> None:
    """Nothing is to be set."""


def hpu_initialize(*_: Any, **__: Any) -> None:
    """Nothing is to be prepared: torch initialises its devices when they are first used."""
    hpu.init()


def hpu_inference_initialize(model: Any = None, *_: Any, **__: Any) -> None:
    """Nothing is to be prepared."""
    hpu.init()


def is_enabled_weight_permute_pass() -> bool:
    """True: weights are not to be permuted by the script, since torch's kernels want them as they are."""
    return True
