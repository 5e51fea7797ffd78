"""``op_wrap``: a user-defined function, or an operation, with a precision of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType
from typing import Any, TypeVar, overload

import torch

from habana_mp import _core, ops
from habana_mp.ops.find import builtins_named
from habana_mp.patches.tools.compiled_functions import constant_in_graph, leave_to_python
from habana_mp.patches.tools.region_dtypes import lists_suspended
from habana_mp.policy.lists import RESULT
from habana_mp.policy.precisions import FLOAT32_RESULT, PRECISIONS, dtype_meant
from habana_mp.policy.rules import Ruling, ruling_in_list
from habana_mp.scopes.scope import wraps_uncompiled

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
    """Gives a function of your own, or an operation, a precision: its tensor arguments are cast to it.

    ``hmp.op_wrap(fn, to="bf16")`` returns the wrapped function; ``@hmp.op_wrap(to="fp32")`` decorates one. The lists
    are suspended inside it: every operation follows the precision of its inputs. It casts while ``convert`` is in force
    or a region is open, unless casts are disabled.

    Args:
        function: The function to wrap.
        to: ``"bf16"``, ``"fp16"`` or ``"fp32"`` (or the dtype, or its name), ``"widest"`` for the widest among the
            inputs, or ``"first"`` for the first input's. ``"bf16 -> fp32"`` gives a product of torch, such as
            ``F.linear``, operands in bf16 and a float32 result; ``torch.compile`` breaks its graph there.
    """
    if isinstance(to, str) and RESULT in to:
        return partial(_wrap_product, to=to) if function is None else _wrap_product(function, to)
    dtype = dtype_meant(to)
    name = to if dtype is None else PRECISIONS.get(dtype)
    if not isinstance(name, str) or name not in _RULINGS:
        raise ValueError(f"`to` must be one of {', '.join(map(repr, _RULINGS))}, or a dtype of these; got {to!r}")
    if function is None:
        return lambda decorated: op_wrap(decorated, to)
    if not callable(function):
        raise TypeError(f"`op_wrap` needs a function; got {type(function).__name__}: {function!r}")
    operation = str(getattr(function, "__name__", type(function).__name__))
    engine = _core.Function(_call, function, operation, _RULINGS[name].rule(""))

    @constant_in_graph
    def precisions(args: tuple[Any, ...], names: tuple[str, ...]) -> tuple[Any, ...] | None:
        """Returns the dtypes of the described arguments after the cast, or None if nothing is cast. The last arguments
        have these names."""
        if not _core.lists_apply_here():
            return None
        given = [_like(one) for one in args]
        count = len(args) - len(names)
        got = engine.call((_as_they_are, *given[:count]), dict(zip(names, given[count:], strict=True)))
        return tuple(map(_change, given, got))

    @wraps_uncompiled(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return _call_in_graph(function, precisions, args, kwargs)
        if not _core.lists_apply_here():
            return function(*args, **kwargs)
        return engine.call((function, *args), kwargs)

    return wrapped


def _wrap_product(function: Any, to: str) -> Any:
    operands, _, result = (part.strip() for part in to.partition(RESULT))
    name = PRECISIONS.get(dtype_meant(operands) or torch.float32)
    if name not in ("bf16", "fp16") or dtype_meant(result) is not torch.float32:
        raise ValueError(f'`to` must be "bf16{FLOAT32_RESULT}" or "fp16{FLOAT32_RESULT}"; got {to!r}')
    operation = str(getattr(function, "__name__", ""))
    is_known = any(one.object is function for one in builtins_named(operation))
    if not is_known or not isinstance(function, BuiltinFunctionType) or not ops.can_have_float32_result(operation):
        raise ValueError(
            f"only a product that is a builtin function of torch can have{FLOAT32_RESULT} here, as torch.matmul or "
            "torch.nn.functional.linear; a line of a list gives it to the others, as `einsum -> fp32`; "
            f"got {function!r}"
        )
    rule = ruling_in_list(operation, name + FLOAT32_RESULT).rule(operation)
    engine = _core.Function(_core.unpatched_copy(function), function, operation, rule)

    @wraps_uncompiled(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return engine.call(args, kwargs) if _core.lists_apply_here() else function(*args, **kwargs)

    leave_to_python(wrapped)
    return wrapped


def _call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Called by the core with the cast arguments. It does not hold the function, which may hold its wrapper."""
    return function(*args, **kwargs)


def _as_they_are(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return (*args, *kwargs.values())


# ---- the same in code that torch.compile can trace -------------------------------------------------------------------


def _call_in_graph(function: Any, precisions: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values = (*args, *kwargs.values())
    changes = precisions(tuple([_described(value) for value in values]), tuple(kwargs))
    if changes is None:
        return function(*args, **kwargs)
    cast = [_changed(value, change) for value, change in zip(values, changes, strict=True)]
    with lists_suspended():
        return function(*cast[: len(args)], **dict(zip(kwargs, cast[len(args) :], strict=True)))


def _described(value: Any) -> Any:
    """Returns the properties of an argument that the core decides by, as constants; see :func:`_like`."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, value.device.type, value.dim() == 0)
    if type(value) in (list, tuple):
        return ("sequence", *[_described(one) for one in value])
    if value is None or isinstance(value, torch.dtype):
        return value
    return 0 if type(value) in (int, float) else ""


def _like(described: Any) -> Any:
    """Returns an argument of that description."""
    if not isinstance(described, tuple):
        return described
    kind, *rest = described
    if kind != "tensor":
        return tuple(map(_like, rest))
    dtype, device, has_no_dimensions = rest
    return torch.zeros(() if has_no_dimensions else 0, dtype=dtype, device=device)


def _change(given: Any, got: Any) -> Any:
    """Returns the dtype to which a tensor was cast, or a tuple of these for a sequence; None if nothing was cast."""
    if given is got:
        return None
    return tuple(map(_change, given, got)) if isinstance(given, tuple) else got.dtype


def _changed(value: Any, change: Any) -> Any:
    if change is None:
        return value
    if isinstance(change, tuple):
        return type(value)([_changed(one, its) for one, its in zip(value, change, strict=True)])
    return value.to(change)
