"""Names as they appear in code: with their path in torch (``F.softmax``, ``torch.ops.aten.mm``), or as the name of a
module (``Linear``).

This file maps them to the names that :mod:`habana_mp.ops` uses.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import types
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from habana_mp.ops import find

#: Prefixes of the name of a torch module.
_MODULES = ("torch.nn.", "nn.")

#: Prefixes of the name of an operator, before its namespace.
_OPERATORS = ("torch.ops.", "ops.")


@cache
def _places() -> dict[str, Any]:
    """Returns the objects of torch that code takes operations from, by the part of a name before its last dot."""
    return {
        **dict(find.namespaces()),  # as in the package's own tables
        "torch": torch,
        **dict.fromkeys(("torch.Tensor", "Tensor"), torch.Tensor),
        **dict.fromkeys(("torch.nn.functional", "nn.functional", "functional", "F"), F),
        **dict.fromkeys(("torch.linalg", "linalg"), torch.linalg),
        **dict.fromkeys(("torch.special", "special"), torch.special),
        **dict.fromkeys(("torch.fft", "fft"), torch.fft),
    }


@cache
def plain_names(name: str) -> tuple[str, ...]:
    """Returns the list names for a name in code, the likeliest first; an empty tuple if code uses no such name."""
    for before in _OPERATORS:
        if name.startswith(before):
            return _of_operator(name.removeprefix(before))
    if name.startswith("aten."):  # as torch prints its operators
        return _of_operator(name)
    place, _, last = name.rpartition(".")
    if place in _places():
        known = inspect.getattr_static(_places()[place], last, None)
        return () if known is None else (_name_of(known, last),)
    kind = module_named(name)
    return () if kind is None else (kind.__name__, *_called_by(kind))


def module_named(name: str) -> type[torch.nn.Module] | None:
    """Returns the torch module of that name, or None: ``Linear``, ``nn.Linear``, ``torch.nn.modules.linear.Linear``."""
    last = name.rpartition(".")[2]
    kind = inspect.getattr_static(torch.nn, last, None)
    if not isinstance(kind, type) or not issubclass(kind, torch.nn.Module):
        return None
    written = (last, *(before + last for before in _MODULES), f"{kind.__module__}.{last}")
    return kind if name in written else None


def _of_operator(name: str) -> tuple[str, ...]:
    """Returns ``namespace::name`` for ``namespace.name``. An overload in the name stays."""
    namespace, dot, operator = name.partition(".")
    return (f"{namespace}::{operator}",) if dot else ()


def _name_of(known: Any, name: str) -> str:
    """Returns a builtin's own name (``linalg_inv`` for ``linalg.inv``), else the given one."""
    return known.__name__ if isinstance(known, types.BuiltinFunctionType) else name


def _called_by(kind: type[torch.nn.Module]) -> tuple[str, ...]:
    """Returns the operation that the forward of a module calls; an empty tuple if it calls only other modules.

    `MultiheadAttention` checks dtypes by functions of `torch` first. So one of `torch.nn.functional` comes before them.
    """
    named = list(_named_in(kind, "forward", {"forward"}))
    found = (name for place in (F, torch) for where, name in named if where is place and find.exists(name))
    return tuple(itertools.islice(found, 1))


def _named_in(kind: type[torch.nn.Module], method: str, seen: set[str]) -> Iterator[tuple[Any, str]]:
    """Yields the torch names that the code of a method uses, in order, and those of the module's methods that it calls.
    Each name comes with its place in torch."""
    function = inspect.getattr_static(kind, method, None)
    if not isinstance(function, types.FunctionType):
        return
    owner = ""
    for instruction in dis.get_instructions(function):
        name = instruction.argval
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            place = function.__globals__.get(owner)
            if owner == "self" and name not in seen:
                seen.add(name)
                yield from _named_in(kind, name, seen)
            elif (place is F or place is torch) and not name.startswith("_"):
                yield place, _name_of(inspect.getattr_static(place, name, None), name)
        owner = str(name[-1] if isinstance(name, tuple) else name)  # Python 3.13 loads two variables at once
