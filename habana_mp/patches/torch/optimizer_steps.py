"""Hooks around every optimizer's step (rule 11).

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

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from habana_mp import _core
from habana_mp.patches.tools.exchange import Exchanged, forwarding_code, replaced, untouched
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.patches.torch import stepped_weights


def code_around_steps() -> types.CodeType:
    """Returns the code of the wrapper that torch puts around every optimizer's step."""

    def step() -> None: ...

    return Optimizer.profile_hook_step(step).__code__


class OptimizerSteps(Patch):
    """Notifies the core at the beginning and the end of each step, by hooks."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []

    def install(self, settings: Settings) -> None:
        if not self._handles:
            self._handles.append(register_optimizer_step_pre_hook(before_step))
            self._handles.append(register_optimizer_step_post_hook(after_step))

    def uninstall(self) -> None:
        while self._handles:
            self._handles[-1].remove()
            self._handles.pop()


def before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    outside = _outside_of_step
    if torch.compiler.is_compiling():
        if type(optimizer).__module__.startswith("torch.optim."):
            # torch's optimizers break the graph anyway. The wrapper then runs as it is, and the core recognises it.
            torch._dynamo.skip_frame("the step of an optimizer")
        # Dynamo may trace another optimizer's step as a whole: then the flag of disable_casts is set in the graph.
        _disabled_before.append(torch.is_autocast_enabled(_core.disabled_flag))
        torch.set_autocast_enabled(_core.disabled_flag, True)
        outside = _outside_of_traced_step
    else:
        _core.optimizer_step_begins()
    # A closure computes the loss: it runs the model's forward, not the optimizer's arithmetic.
    if "closure" in kwargs and callable(kwargs["closure"]):
        return args, {**kwargs, "closure": outside(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], outside(args[1]), *args[2:]), kwargs
    return None


def after_step(optimizer: Optimizer, *_: Any) -> None:
    if torch.compiler.is_compiling():
        torch.set_autocast_enabled(_core.disabled_flag, _disabled_before.pop())
    else:
        _core.optimizer_step_ends()
        stepped_weights.look_at(optimizer)


#: The flag as it was before each step that is being traced.
_disabled_before: list[bool] = []


def _outside_of_step(closure: Any) -> Any:
    def closure_outside_of_step() -> Any:
        steps = _core.exchange_optimizer_steps(0)
        try:
            return closure()
        finally:
            _core.exchange_optimizer_steps(steps)

    return closure_outside_of_step


def _outside_of_traced_step(closure: Any) -> Any:
    def closure_outside_of_traced_step() -> Any:
        torch.set_autocast_enabled(_core.disabled_flag, _disabled_before[-1])
        loss = closure()
        torch.set_autocast_enabled(_core.disabled_flag, True)
        return loss

    return closure_outside_of_traced_step


# ---- steps that torch does not wrap ----------------------------------------------------------------------------------

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
