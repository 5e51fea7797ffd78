"""Optimizers whose step torch does not wrap.

The constructor of ``torch.optim.Optimizer`` puts torch's wrapper around the step of an optimizer's class, by which the
core recognises it. A class that stands in front of another optimizer often never calls that constructor. Which do is
read from their code; the code of their step is exchanged for one that begins and ends a step as torch's wrapper does.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch.optim import Optimizer

from habana_mp._composites import forwarding_code, full_name, untouched

_originals: dict[str, types.FunctionType] = {}
_numbers = itertools.count()
#: What begins a step, and may give other arguments for it, and what ends one: as hooks of torch.optim.
_around: list[Callable[..., Any]] = []


def in_step(key: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of such a step is exchanged for. The core looks for this function among those that run."""
    before, after = _around
    given = before(arguments[0], arguments, keywords)
    if given is not None:
        arguments, keywords = given
    try:
        return _originals[key](*arguments, **keywords)
    finally:
        after()


def _never_calls_constructor(optimizer: type) -> bool:
    """Does what constructs an optimizer of this class not lead to torch's constructor, as far as its code tells?"""
    for owner in optimizer.__mro__:
        constructor = vars(owner).get("__init__")
        if constructor is None:
            continue
        if owner is Optimizer:
            return False
        function = inspect.unwrap(constructor)
        if not isinstance(function, types.FunctionType) or not _names(function.__code__, "__init__"):
            return True
    return False


def _names(code: types.CodeType, name: str) -> bool:
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return name in code.co_names or any(_names(one, name) for one in inner)


def _subclasses(owner: type) -> Iterator[type]:
    for one in type.__subclasses__(owner):
        yield one
        yield from _subclasses(one)


class UnwrappedSteps:
    """All of them, those of classes that are made later too."""

    def __init__(self, before: Callable[..., Any], after: Callable[..., Any]) -> None:
        self._around = [before, after]
        self._codes: dict[str, tuple[types.FunctionType, types.CodeType]] = {}
        self._watches = False

    def install(self) -> None:
        _around[:] = self._around
        for optimizer in set(_subclasses(Optimizer)):
            self._exchange(optimizer)
        if "__init_subclass__" not in vars(Optimizer):

            def look(made: type[Any], /, **options: Any) -> None:
                super(Optimizer, made).__init_subclass__(**options)  # type: ignore[misc]  # it is one
                self._exchange(made)

            self._watches = True
            Optimizer.__init_subclass__ = classmethod(look)  # type: ignore[assignment]  # a hook of ours

    def uninstall(self) -> None:
        if self._watches and "__init_subclass__" in vars(Optimizer):
            del Optimizer.__init_subclass__
        self._watches = False
        for function, code in self._codes.values():
            function.__code__ = code
        for key in self._codes:
            _originals.pop(key, None)
        self._codes = {}

    def _exchange(self, optimizer: type) -> None:
        step = vars(optimizer).get("step")
        if not isinstance(step, types.FunctionType) or hasattr(step, "hooked"):  # by torch
            return
        if any(step is function for function, _ in self._codes.values()) or not _never_calls_constructor(optimizer):
            return
        key = f"{full_name(step)} {next(_numbers)}"  # names of local classes may be equal
        self._codes[key] = (step, step.__code__)
        _originals[key] = untouched(step)
        step.__code__ = forwarding_code(step, in_step, imported=__name__, known_as=key)
