"""``habana_frameworks.torch.core.step_closure``."""

from __future__ import annotations

__all__ = ["_mark_step_if_lazy"]


def _mark_step_if_lazy() -> None:
    """Accepts the call and changes nothing: operations run when they are called."""
