"""Blocks of code with a precision policy of their own: a context manager that is a decorator too."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch

from habana_mp import _core
from habana_mp.common.errors import warn
from habana_mp.patches.tools.compiled_functions import forget_that_it_was_compiled

_F = TypeVar("_F", bound=Callable[..., Any])


def wraps_uncompiled(function: Any) -> Callable[[_F], _F]:
    """Like :func:`functools.wraps`, but without the mark of a compiled function: torch.compile would skip it."""

    def decorate(wrapper: _F) -> _F:
        functools.update_wrapper(wrapper, function)
        forget_that_it_was_compiled(wrapper)
        return wrapper

    return decorate


_DROPS_VALUE = dis.opmap["POP_TOP"]


def _drops_a_value(frame: types.FrameType | None) -> bool:
    """True if the code around this frame drops the value of a statement."""
    caller = None if frame is None else frame.f_back
    return caller is not None and caller.f_code.co_code[caller.f_lasti] == _DROPS_VALUE


class Scope(ABC):
    """It can be nested, entered again, and shared by threads. Its exit restores the state before its entry.

    A warning says what to write if it is neither entered nor a decorator."""

    #: The function that returns it, and the advice for a call of this function as a statement.
    _name: str
    _advice: str
    #: True after it was entered, has decorated a function, or has shown the advice.
    _is_used = False

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        if self._is_used:
            _core.leave_if_open(self)  # Ctrl-C may have come between the block and its begin or end
        elif _drops_a_value(inspect.currentframe()):
            warn(self._advice)

    def __repr__(self) -> str:
        self._is_used = True  # a shell shows the advice now; the warning would follow when the shell ends
        return f"<{self._advice}>"

    @abstractmethod
    def __enter__(self) -> Any: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    def _again(self) -> AbstractContextManager[Any]:
        """Returns the context manager that a decorated function runs in."""
        return self

    def __call__(self, function: _F) -> _F:
        """Decorates a function, a generator function or a coroutine function."""
        self._is_used = True
        is_other = isinstance(function, (type, torch.nn.Module)) or inspect.isasyncgenfunction(function)
        if not callable(function) or is_other:
            raise TypeError(
                f"`{self._name}` decorates a function, or stands in a `with` statement around a block; got "
                f"{type(function).__name__}: {function!r}"
            )
        decorated: Any
        if inspect.isgeneratorfunction(function):

            @wraps_uncompiled(function)
            def decorated(*args: Any, **kwargs: Any) -> Any:
                return (yield from self._between_yields(function(*args, **kwargs)))

        elif inspect.iscoroutinefunction(function):

            @wraps_uncompiled(function)
            async def decorated(*args: Any, **kwargs: Any) -> Any:
                steps: Any = _as_awaitable(self._between_yields(function(*args, **kwargs)))
                return await steps

        else:

            @wraps_uncompiled(function)
            def decorated(*args: Any, **kwargs: Any) -> Any:
                with self._again():
                    return function(*args, **kwargs)

        return decorated  # type: ignore[no-any-return]  # of the same form

    def _between_yields(self, running: Any) -> Generator[Any, Any, Any]:
        """Runs a generator or coroutine in this scope. The code that drives it runs in its own scope in between."""
        value: Any = None
        error: BaseException | None = None
        try:
            while True:
                with self._again():
                    yielded = running.send(value) if error is None else running.throw(error)
                value, error = None, None
                try:
                    value = yield yielded
                except GeneratorExit:
                    raise
                except BaseException as thrown:  # an exception thrown in belongs to the generator
                    error = thrown
        except StopIteration as stop:
            return stop.value
        finally:
            # While the interpreter shuts down, no scope can be entered.
            with contextlib.nullcontext() if sys.is_finalizing() else self._again():
                running.close()


@types.coroutine
def _as_awaitable(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    return (yield from steps)
