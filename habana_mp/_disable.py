"""``disable_casts``: a block of code, or a function, in which nothing is cast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar, overload

import torch

from habana_mp import _core
from habana_mp._scopes import Scope

_F = TypeVar("_F", bound=Callable[..., Any])


@overload
def disable_casts() -> CastsOff: ...
@overload
def disable_casts(function: _F) -> _F: ...
def disable_casts(function: Any = None) -> Any:
    """Casts off in this thread: ``with hmp.disable_casts():`` around a block, ``@hmp.disable_casts()`` on a function.

    It may be nested and reused, an exception leaves the state right, and other threads are not affected. Tensors that
    are in lower precision already stay so.
    """
    if function is not None:
        return CastsOff()(function)
    if torch.compiler.is_compiling():
        # A flag of torch's own, so that autograd's threads inherit it and torch.compile guards on it. torch.compile
        # knows this one by heart: how to leave and enter it again around a graph break, for instance.
        return torch.autocast(_core.disabled_flag, dtype=torch.bfloat16)
    return CastsOff()


class CastsOff(Scope):
    """What :func:`disable_casts` returns."""

    _name = "disable_casts"

    def __enter__(self) -> None:
        _core.enter_region(self, 0)

    def __exit__(self, *_: object) -> None:
        _core.leave_region(self)

    def _again(self) -> AbstractContextManager[Any]:
        return disable_casts()
