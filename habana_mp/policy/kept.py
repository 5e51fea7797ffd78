"""Modules that ``hmp.keep`` keeps in a precision: a property of the module, which its copies have too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: The attribute of a module, or of its class, that says in which precision it is kept.
ATTRIBUTE = "_habana_mp_kept"

#: The precision of a module whose casts were made when it was exported: the lists decide nothing in it.
AS_EXPORTED = "as exported"


class _State:
    #: Modules that were kept in an earlier generation are not kept any more.
    generation = 0
    exist = False
    #: Called when a module is kept, or kept no more.
    listener: Callable[[], None] = staticmethod(lambda: None)


class Kept:
    """The value of the attribute."""

    def __init__(self, precision: str) -> None:
        self.precision = precision
        self.generation = _State.generation
        _State.exist = True

    def __reduce__(self) -> tuple[Any, ...]:
        # A module from a file is kept as it was when it was saved, unless `restore` had let it go.
        is_kept = self.generation == _State.generation
        return (_loaded, (self.precision,)) if is_kept else (type(None), ())


def _loaded(precision: str) -> Kept:
    kept = Kept(precision)
    _State.listener()
    return kept


def set_kept(module: torch.nn.Module | type[torch.nn.Module], precision: str | None) -> None:
    """Keeps a module, or all modules of a class, in a precision; None: keeps it no more."""
    value = None if precision is None else Kept(precision)
    if isinstance(module, type):
        setattr(module, ATTRIBUTE, value)
    elif value is None and getattr(type(module), ATTRIBUTE, None) is None:
        vars(module).pop(ATTRIBUTE, None)
    else:
        vars(module)[ATTRIBUTE] = value
    _State.listener()


def precision_kept_in(module: object) -> str | None:
    """Returns the precision in which a module itself is kept, or None."""
    instance = getattr(module, "__dict__", {})
    value = instance[ATTRIBUTE] if ATTRIBUTE in instance else getattr(type(module), ATTRIBUTE, None)
    if not isinstance(value, Kept) or value.generation != _State.generation:
        return None
    return value.precision


def are_there_kept() -> bool:
    """True if any module was kept since `forget_kept`."""
    return _State.exist


def listen(listener: Callable[[], None]) -> None:
    """Sets the function that is called when a module is kept, or kept no more."""
    _State.listener = staticmethod(listener)


def forget_kept() -> None:
    """Keeps no module any more."""
    _State.generation += 1
    _State.exist = False
