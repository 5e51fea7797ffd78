"""Names as code has them: with their place in torch (``F.softmax``, ``torch.ops.aten.mm``), or of modules (``Linear``).

Which of the names that :mod:`habana_mp.ops` knows is meant, is known here.
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

#: What the name of a module of torch's may begin with.
_MODULES = ("torch.nn.", "nn.")

#: What the name of an operator may begin with, before its namespace.
_OPERATORS = ("torch.ops.", "ops.")


@cache
def _places() -> dict[str, Any]:
    """Where code reaches operations, by what stands before the last dot."""
    return {
        **dict(find.namespaces()),  # as the package's own tables name them
        "torch": torch,
        **dict.fromkeys(("torch.Tensor", "Tensor"), torch.Tensor),
        **dict.fromkeys(("torch.nn.functional", "nn.functional", "functional", "F"), F),
        **dict.fromkeys(("torch.linalg", "linalg"), torch.linalg),
        **dict.fromkeys(("torch.special", "special"), torch.special),
        **dict.fromkeys(("torch.fft", "fft"), torch.fft),
    }


@cache
def plain_names(name: str) -> tuple[str, ...]:
    """What a name that code has may be called in lists, the likeliest first; nothing where it is not written so."""
    for before in _OPERATORS:
        if name.startswith(before):
            return _of_operator(name.removeprefix(before))
    if name.startswith("aten."):  # as torch shows its operators
        return _of_operator(name)
    place, _, last = name.rpartition(".")
    if place in _places():
        known = inspect.getattr_static(_places()[place], last, None)
        return () if known is None else (_name_of(known, last),)
    kind = module_named(name)
    return () if kind is None else (kind.__name__, *_called_by(kind))


def module_named(name: str) -> type[torch.nn.Module] | None:
    """torch's module that is called so: ``Linear``, ``nn.Linear``, ``torch.nn.modules.linear.Linear``."""
    last = name.rpartition(".")[2]
    kind = inspect.getattr_static(torch.nn, last, None)
    if not isinstance(kind, type) or not issubclass(kind, torch.nn.Module):
        return None
    written = (last, *(before + last for before in _MODULES), f"{kind.__module__}.{last}")
    return kind if name in written else None


def _of_operator(name: str) -> tuple[str, ...]:
    """``namespace::name`` of ``namespace.name``, and its overload if it has one."""
    namespace, dot, operator = name.partition(".")
    return (f"{namespace}::{operator}",) if dot else ()


def _name_of(known: Any, name: str) -> str:
    """A builtin has the name of its operation, also where it stands under another one: ``linalg.inv``."""
    return known.__name__ if isinstance(known, types.BuiltinFunctionType) else name


def _called_by(kind: type[torch.nn.Module]) -> tuple[str, ...]:
    """The operation that the forward of a module calls. (A convolution pads first, attention asks for dtypes: what is
    in `torch.nn.functional` and comes first is what the module is for.) Nothing where it calls other modules only."""
    named = list(_named_in(kind, "forward", {"forward"}))
    found = (name for place in (F, torch) for where, name in named if where is place and find.exists(name))
    return tuple(itertools.islice(found, 1))


def _named_in(kind: type[torch.nn.Module], method: str, seen: set[str]) -> Iterator[tuple[Any, str]]:
    """What of torch's the code of a method names, in its order, and the code of the module's methods that it names."""
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
