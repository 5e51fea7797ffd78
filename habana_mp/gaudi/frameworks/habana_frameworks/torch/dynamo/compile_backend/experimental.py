"""``habana_frameworks.torch.dynamo.compile_backend.experimental``."""

from __future__ import annotations

from habana_mp.gaudi.patches.compile import compile_backward

__all__ = ["enable_compiled_autograd"]


def enable_compiled_autograd(enabled: bool = True) -> None:
    """Makes ``torch.compile`` compile the backward as a whole too.

    Raises:
        NotImplementedError: this torch cannot.
    """
    compile_backward(enabled)
