"""``habana_frameworks.torch.dynamo.compile_backend.experimental``."""

from __future__ import annotations

import torch

__all__ = ["enable_compiled_autograd"]


def enable_compiled_autograd(enabled: bool = True) -> None:
    """Makes ``torch.compile`` compile the backward as a whole too: ``torch._dynamo.config.compiled_autograd``.

    Raises:
        NotImplementedError: this torch has no such switch.
    """
    if not hasattr(torch._dynamo.config, "compiled_autograd"):
        raise NotImplementedError(
            f"torch {torch.__version__} has no switch for compiled autograd; use torch 2.6 or later"
        )
    torch._dynamo.config.compiled_autograd = enabled
