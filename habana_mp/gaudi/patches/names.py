"""The interface between the stand-in for Gaudi and its patches."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Meaning(Protocol):
    """The meaning of ``"hpu"``, see :class:`habana_mp.gaudi.devices.Devices`."""

    real: torch.device
    names: set[str]

    def means(self, value: Any) -> bool: ...
    def numbered(self, value: Any) -> Any: ...
    def real_of(self, value: Any, what: str) -> Any: ...
    def seen(self, device: torch.device) -> torch.device: ...
    def real_backend(self, backend: Any) -> Any: ...
    def tell(self, what: str, given: Any, to: Any = None) -> None: ...
    @property
    def is_script(self) -> Callable[[types.FrameType | None], bool]: ...


def with_arguments(
    function: Callable[..., Any], change: Callable[[dict[str, Any]], None]
) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
    """Returns a function for a ``Replacement`` that calls the original after ``change`` has edited its arguments, which
    it gets by name."""
    signature = inspect.signature(function)

    def call(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        try:
            bound = signature.bind(*arguments, **keywords)
        except TypeError:
            return original(*arguments, **keywords)  # which raises the appropriate error
        change(bound.arguments)
        return original(*bound.args, **bound.kwargs)

    return call
