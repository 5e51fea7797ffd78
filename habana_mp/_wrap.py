"""``op_wrap``: a user's own function, or an operation, with a precision of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

import torch

from habana_mp import _core
from habana_mp._marks import as_autocast
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
    engine = _core.Function(_call, function, operation, _RULINGS[name].rule(""))

    def precisions(tensors: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Of (dtype, device type) of the arguments the dtypes to come; None where nothing is cast."""
        if not _core.lists_speak_here():
            return None
        like = [one and torch.empty(0, dtype=one[0], device=one[1]) for one in tensors]
        return tuple(value if value is None else value.dtype for value in engine.call((_as_they_are, *like), {}))

    # torch.compile calls it when it compiles, and takes what it returns for a constant.
    precisions._dynamo_marked_constant = True  # type: ignore[attr-defined]  # Dynamo looks for it

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return _call_in_graph(function, precisions, args, kwargs)
        if not _core.lists_speak_here():
            return function(*args, **kwargs)
        return engine.call((function, *args), kwargs)

    return wrapped


def _call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What the core calls with the arguments cast. It does not hold the function: that may hold its wrapper."""
    return function(*args, **kwargs)


def _as_they_are(*values: Any) -> tuple[Any, ...]:
    return values


def _call_in_graph(function: Any, precisions: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same in words that torch.compile can read."""
    values = (*args, *kwargs.values())
    found = precisions(tuple([_described(one) for value in values for one in _members(value)]))
    if found is None:
        return function(*args, **kwargs)
    dtypes = iter(found)
    cast = [_with_members_cast(value, dtypes) for value in values]
    with as_autocast(_number_of_silence()):
        return function(*cast[: len(args)], **dict(zip(kwargs, cast[len(args) :], strict=True)))


def _members(value: Any) -> Any:
    return value if type(value) in (list, tuple) else (value,)


def _described(value: Any) -> Any:
    return (value.dtype, value.device.type) if isinstance(value, torch.Tensor) else None


def _with_members_cast(value: Any, dtypes: Iterator[Any]) -> Any:
    members = [one if dtype is None else one.to(dtype) for one, dtype in zip(_members(value), dtypes, strict=False)]
    return type(value)(members) if type(value) in (list, tuple) else members[0]


def _number_of_silence() -> int:
    return _core.number_of_silence()


_number_of_silence._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as above
