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
    """Waits for all operations if ``sync`` is true. Gaudi gathers operations and runs them here; torch has started each
    one when it was called."""
    if sync:
        hpu.synchronize()


def hpu_set_env(*_: Any, **__: Any) -> None:
    """Does nothing: torch needs no environment variables of Gaudi."""


def hpu_initialize(*_: Any, **__: Any) -> None:
    """Makes torch initialise the device now. Nothing else needs preparation."""
    hpu.init()


def hpu_inference_initialize(model: Any = None, *_: Any, **__: Any) -> None:
    """Makes torch initialise the device now. The model needs no preparation."""
    hpu.init()


def is_enabled_weight_permute_pass() -> bool:
    """Returns True, so that the script does not permute weights: torch's kernels use them as they are."""
    return True
