"""``habana_frameworks.torch.core``."""

from __future__ import annotations

import os
from typing import Any

from .. import hpu
from ..distributed import hccl
from . import step_closure

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


def hpu_set_env(*_: Any, **__: Any) -> None:
    """Accepts the call and changes nothing: torch needs no environment variables of Gaudi."""


def hpu_initialize(*_: Any, **__: Any) -> None:
    """Makes torch initialise the device now. Nothing else needs preparation."""
    hpu.init()


def hpu_inference_initialize(model: Any = None, *_: Any, **__: Any) -> None:
    """Makes torch initialise the device now. The model needs no preparation."""
    hpu.init()


def hpu_set_inference_env(*_: Any, **__: Any) -> None:
    """Accepts the call and changes nothing: torch needs no environment variables of Gaudi."""


#: Another spelling of it.
hpu_inference_set_env = hpu_set_inference_env


def hpu_teardown_inference_env(*_: Any, **__: Any) -> None:
    """Accepts the call and changes nothing: :func:`hpu_set_inference_env` has set nothing."""


def get_device_count() -> int:
    """Returns the number of devices of the type that ``"hpu"`` leads to; 1 for the CPU."""
    return hpu.device_count()


def is_lazy() -> bool:
    """True if ``PT_HPU_LAZY_MODE`` in the environment is not 0. Operations run at once in any case."""
    return os.environ.get("PT_HPU_LAZY_MODE", "0") not in ("0", "")


def enable_weight_permute_pass(enable: bool = True) -> None:
    """Accepts the call and changes nothing: torch's kernels use weights as they are."""


def is_enabled_weight_permute_pass() -> bool:
    """Returns True, so that the script does not permute weights: torch's kernels use them as they are."""
    return True
