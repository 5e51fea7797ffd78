"""Optimizers whose step torch does not wrap.

The constructor of ``torch.optim.Optimizer`` wraps the step of an optimizer's class, and the core recognises a step by
that wrapper. A class that wraps another optimizer often does not call that constructor. The classes that do not call it
are found by their code. The code of their step, which may be that of a base class, is replaced by code that begins and
ends a step as torch's wrapper does.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Iterator
from typing import Any

from torch.optim import Optimizer

from habana_mp.patches.tools.exchange import Exchanged, forwarding_code, replaced, untouched
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.patches.torch import stepped_weights
from habana_mp.patches.torch.optimizer_steps import after_step, before_step

#: The attribute of a replaced step that holds its original. So a class that a program drops is freed with its step.
_ATTRIBUTE = "_habana_mp_original"

#: The steps that were replaced.
_steps: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()


def in_step(reference: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces the code of such a step. The core looks for this function in the call stack."""
    step = reference()
    # Without the attribute another thread has restored the step meanwhile: it has its own code again.
    run = vars(step).get(_ATTRIBUTE, step)
    if not isinstance(arguments[0], Optimizer):  # another class has the same mixin
        return run(*arguments, **keywords)
    given = before_step(arguments[0], arguments, keywords)
    if given is not None:
        arguments, keywords = given
    try:
        return run(*arguments, **keywords)
    finally:
        after_step(arguments[0])


def step_copy(optimizer: Optimizer) -> None:
    """Makes the step of an optimizer that is a copy, without its hooks. Hooks of this package ignore it."""
    stepped_weights.copies.add(optimizer)
    # A step may call that of its base class, which torch wraps too.
    vars(optimizer).update(_optimizer_step_pre_hooks={}, _optimizer_step_post_hooks={})
    step: Any = type(optimizer).step
    step = step.__wrapped__ if hasattr(step, "hooked") else vars(step).get(_ATTRIBUTE, step)
    step(optimizer)


def _passes_constructor_over(optimizer: type) -> bool:
    """True if the constructor of this class does not lead to torch's constructor, as far as its code shows."""
    for owner in optimizer.__mro__:
        constructor = vars(owner).get("__init__")
        if owner is Optimizer:
            return False
        if constructor is not None:
            function = inspect.unwrap(constructor)
            if not isinstance(function, types.FunctionType) or "__init__" not in function.__code__.co_names:
                return True
    return False


def _subclasses(owner: type) -> Iterator[type]:
    for one in type.__subclasses__(owner):
        yield one
        yield from _subclasses(one)


class UnwrappedSteps(Patch):
    """Replaces all such steps, including those of classes that are created later."""

    def __init__(self) -> None:
        self._exchanged = Exchanged()

    def install(self, settings: Settings) -> None:
        for optimizer in set(_subclasses(Optimizer)):
            _replace(optimizer)
        if "__init_subclass__" not in vars(Optimizer):

            def look(made: type[Any], /, **options: Any) -> None:
                super(Optimizer, made).__init_subclass__(**options)  # type: ignore[misc]  # `made` is a subclass
                _replace(made)

            self._exchanged.exchange(Optimizer, "__init_subclass__", classmethod(look))

    def uninstall(self) -> None:
        self._exchanged.put_back()
        for step in list(_steps):
            if _ATTRIBUTE in vars(step):
                step.__code__ = vars(step)[_ATTRIBUTE].__code__
                del vars(step)[_ATTRIBUTE]


def _replace(optimizer: type) -> None:
    owner = next(one for one in optimizer.__mro__ if "step" in vars(one))
    step = vars(owner)["step"]
    # The step of Optimizer itself raises. torch marks a step that it wraps by the attribute `hooked`.
    if owner is Optimizer or not isinstance(step, types.FunctionType) or hasattr(step, "hooked"):
        return
    if _ATTRIBUTE not in vars(step) and _passes_constructor_over(optimizer):
        key = f"{id(step)}"
        replaced[key] = functools.partial(in_step, weakref.ref(step, lambda _: replaced.pop(key, None)))
        _steps.add(step)
        vars(step)[_ATTRIBUTE] = untouched(step)
        step.__code__ = forwarding_code(step, key)
