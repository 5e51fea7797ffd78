"""``disable_casts``: a block of code, or a function, in which nothing is cast."""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable, Generator
from typing import Any, TypeVar, overload

import torch

from habana_mp import _core

_F = TypeVar("_F", bound=Callable[..., Any])

# A flag of torch's own, so that autograd's threads inherit it and torch.compile guards on it; see docs/design.md.
_FLAG = _core.disabled_flag


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
        # torch.compile knows this one by heart: how to leave and enter it again around a graph break, for instance.
        return torch.autocast(_FLAG, dtype=torch.bfloat16)
    return CastsOff()


def exchange_disabled(disabled: bool, by_region: bool) -> tuple[bool, bool]:
    """Set whether casts are off in this thread, and whether a region of torch.autocast did it; what both were."""
    before = torch.is_autocast_enabled(_FLAG), _core.exchange_disabled_by_region(by_region)
    torch.set_autocast_enabled(_FLAG, disabled)
    _core.exchange_disabled_by_region(by_region)  # setting the flag forgets it
    return before


class CastsOff:
    """What :func:`disable_casts` returns."""

    def __init__(self) -> None:
        self._by_thread = threading.local()

    def _entrances(self) -> list[tuple[bool, bool]]:
        # What the flag was at each entrance, and whether a region of torch.autocast had set it. By thread: threads may
        # share an instance.
        entrances: list[tuple[bool, bool]] = self._by_thread.__dict__.setdefault("entrances", [])
        return entrances

    def __enter__(self) -> None:
        self._entrances().append(exchange_disabled(True, False))

    def __exit__(self, *_: object) -> None:
        exchange_disabled(*self._entrances().pop())

    def __call__(self, function: _F) -> _F:
        """Decorate a function, a generator function or a coroutine function."""
        if not callable(function):
            raise TypeError(f"`disable_casts` decorates a function; got {type(function).__name__}: {function!r}")
        decorated: Any
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def decorated(*args: Any, **kwargs: Any) -> Any:
                return (yield from _between_yields(function(*args, **kwargs)))

        elif inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def decorated(*args: Any, **kwargs: Any) -> Any:
                running = function(*args, **kwargs)
                step = running.__anext__()
                try:
                    while True:
                        item = await _as_awaitable(_between_yields(step))  # type: ignore[misc]
                        try:
                            step = running.asend((yield item))
                        except GeneratorExit:
                            raise
                        except BaseException as thrown:  # whatever is thrown in belongs to the generator
                            step = running.athrow(thrown)
                except StopAsyncIteration:
                    return
                finally:
                    await running.aclose()

        elif inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def decorated(*args: Any, **kwargs: Any) -> Any:
                return await _as_awaitable(_between_yields(function(*args, **kwargs)))  # type: ignore[misc]

        else:

            @functools.wraps(function)
            def decorated(*args: Any, **kwargs: Any) -> Any:
                with disable_casts():
                    return function(*args, **kwargs)

        return decorated  # type: ignore[no-any-return]


def _between_yields(running: Any) -> Generator[Any, Any, Any]:
    """Run a generator or coroutine with casts off, and whoever drives it with whatever he had."""
    value: Any = None
    error: BaseException | None = None
    try:
        while True:
            with disable_casts():
                yielded = running.send(value) if error is None else running.throw(error)
            value, error = None, None
            try:
                value = yield yielded
            except GeneratorExit:
                raise
            except BaseException as thrown:  # whatever is thrown in belongs to the generator
                error = thrown
    except StopIteration as stop:
        return stop.value
    finally:
        with disable_casts():
            running.close()


@types.coroutine
def _as_awaitable(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    return (yield from steps)
