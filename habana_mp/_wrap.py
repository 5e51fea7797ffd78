"""``op_wrap``: a user's own function, or an operation, with a precision of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

import torch

from habana_mp import _core
from habana_mp._policy import PRECISIONS, Ruling

_F = TypeVar("_F", bound=Callable[..., Any])

_RULINGS = {
    "bf16": Ruling("precision", "bf16"),
    "fp16": Ruling("precision", "fp16"),
    "fp32": Ruling("precision", "fp32"),
    "widest": Ruling("widest"),
    "first": Ruling("first_input"),
}


@overload
def op_wrap(function: _F, to: str | torch.dtype = ...) -> _F: ...
@overload
def op_wrap(*, to: str | torch.dtype = ...) -> Callable[[_F], _F]: ...
def op_wrap(function: Any = None, to: str | torch.dtype = "bf16") -> Any:
    """Give a function of your own, or an operation, a precision: its tensor arguments are cast to it.

    ``hmp.op_wrap(fn, to="bf16")`` returns the wrapped function; ``@hmp.op_wrap(to="fp32")`` decorates one. Inside of it
    the lists are silent: every operation follows the precision of its inputs. It casts while ``convert`` is in force
    or a region is open, and casts are not disabled.

    Args:
        function: What to wrap.
        to: ``"bf16"``, ``"fp16"`` or ``"fp32"`` (or the dtype), ``"widest"`` for the widest among the inputs, or
            ``"first"`` for the first input's.
    """
    name = PRECISIONS.get(to) if isinstance(to, torch.dtype) else to
    if not isinstance(name, str) or name not in _RULINGS:
        raise ValueError(f"`to` must be one of {', '.join(map(repr, _RULINGS))}, or a dtype of these; got {to!r}")
    if function is None:
        return lambda decorated: op_wrap(decorated, to)
    if not callable(function):
        raise TypeError(f"`op_wrap` needs a function; got {type(function).__name__}: {function!r}")
    operation = getattr(function, "__name__", type(function).__name__)
    engine = _core.Function(function, function, operation, _RULINGS[name].rule(""))

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not _core.lists_speak_here():
            return function(*args, **kwargs)
        return engine.call(args, kwargs)

    return wrapped
