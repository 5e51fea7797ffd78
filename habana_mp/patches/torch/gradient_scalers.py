"""Gradient scalers, whose state must not change in a step that a diagnosis repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: The methods that change the state of a scaler, or gradients, after the backward.
_METHODS = ("unscale_", "step")


@contextmanager
def scalers_end_steps(is_looking: Callable[[], bool], ends: type[BaseException]) -> Iterator[None]:
    """A block in which a scaler's first method after the backward raises this exception, before it does anything."""
    kind: Any = torch.amp.GradScaler
    former = {name: vars(kind)[name] for name in _METHODS}

    def ending(name: str) -> Callable[..., Any]:
        def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_looking() and self.is_enabled():
                raise ends
            return former[name](self, *arguments, **keywords)

        return method

    try:
        for name in _METHODS:
            setattr(kind, name, ending(name))
        yield
    finally:
        for name, method in former.items():
            setattr(kind, name, method)
