"""``habana_frameworks.torch.core.quantization``: the marks of constant weights. fp8 itself is not here."""

from __future__ import annotations

from typing import Any

__all__ = ["_check_params_as_const", "_mark_params_as_const"]


def _mark_params_as_const(model: Any, *_: Any, **__: Any) -> None:
    """Accepts the call and changes nothing, since torch's kernels use weights as they are."""


def _check_params_as_const(model: Any, *_: Any, **__: Any) -> None:
    """Accepts the call and changes nothing, like :func:`_mark_params_as_const`."""
