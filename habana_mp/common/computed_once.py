"""An attribute that is computed when it is first read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class computed_once(Generic[_T]):  # noqa: N801  # it is used as a decorator
    """Like ``functools.cached_property``, but without the lock that this has until Python 3.11: a child that is forked
    while another thread holds the lock would wait forever."""

    def __init__(self, function: Callable[[Any], _T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> _T:
        if instance is None:
            return self  # type: ignore[return-value]  # help() reads it from the class
        value = vars(instance)[self._function.__name__] = self._function(instance)
        return value
