"""Optimizers whose step torch does not wrap.

The constructor of ``torch.optim.Optimizer`` wraps the step of an optimizer's class, and the core recognises a step by
that wrapper. A class that wraps another optimizer often does not call that constructor. The classes that may not call
it are found by their code. The code of their step, which may be that of a base class, is replaced by code that begins
and ends a step as torch's wrapper does, unless torch has wrapped the step after all.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from collections.abc import Iterator
from typing import Any

from torch.optim import Optimizer

from habana_mp.common.ledger import Assumption, holds
from habana_mp.patches.tools.code_exchange import forwarding_code, full_name, untouched
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.patches.torch.optimizer_steps import after_step, before_step

_WRAPPED = Assumption(
    "torch.wrapped-steps",
    assumed="the constructor of torch.optim.Optimizer marks a step that it wraps by the attribute `hooked`",
    check="the code that wraps it names that",
    otherwise="a step that torch wraps may be wrapped once more, which changes nothing but takes longer",
)

_originals: dict[str, types.FunctionType] = {}
_numbers = itertools.count()


def in_step(key: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces the code of such a step. The core looks for this function in the call stack."""
    if not isinstance(arguments[0], Optimizer) or _is_wrapped(type(arguments[0]).step):
        return _originals[key](*arguments, **keywords)
    given = before_step(arguments[0], arguments, keywords)
    if given is not None:
        arguments, keywords = given
    try:
        return _originals[key](*arguments, **keywords)
    finally:
        after_step()


def _may_not_call_constructor(optimizer: type) -> bool:
    """True if the constructor of this class may not lead to torch's constructor, as far as its code shows."""
    for owner in optimizer.__mro__:
        constructor = vars(owner).get("__init__")
        if constructor is None:
            continue
        if owner is Optimizer:
            return False
        function = inspect.unwrap(constructor)
        if not isinstance(function, types.FunctionType):
            return True
        names = functools.partial(_names, function.__code__)
        # `object.__init__(self)` and `super(Optimizer, self).__init__()` pass torch's constructor over.
        if not names("__init__") or names("object") or (names("super") and names("Optimizer")):
            return True
    return False


def _names(code: types.CodeType, name: str) -> bool:
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return name in code.co_names or any(_names(one, name) for one in inner)


def _subclasses(owner: type) -> Iterator[type]:
    for one in type.__subclasses__(owner):
        yield one
        yield from _subclasses(one)


def _step_of(optimizer: type) -> Any:
    """Returns the step of this class, its own or an inherited one; None if it has that of Optimizer, which raises."""
    owner = next(one for one in optimizer.__mro__ if "step" in vars(one))
    return None if owner is Optimizer else vars(owner)["step"]


def _is_wrapped(step: Any) -> bool:
    """True if torch has wrapped this step."""
    return holds(_WRAPPED, _torch_marks_steps) and hasattr(step, "hooked")


def _torch_marks_steps() -> bool:
    return _names(Optimizer._patch_step_function.__code__, "hooked")


class UnwrappedSteps(Patch):
    """Replaces all such steps, including those of classes that are created later."""

    def __init__(self) -> None:
        self._codes: dict[str, tuple[types.FunctionType, types.CodeType]] = {}
        self._watches = False

    def install(self, settings: Settings) -> None:
        for optimizer in set(_subclasses(Optimizer)):
            self._exchange(optimizer)
        if "__init_subclass__" not in vars(Optimizer):

            def look(made: type[Any], /, **options: Any) -> None:
                super(Optimizer, made).__init_subclass__(**options)  # type: ignore[misc]  # `made` is a subclass
                self._exchange(made)

            self._watches = True
            Optimizer.__init_subclass__ = classmethod(look)  # type: ignore[assignment]  # removed by `uninstall`

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
        step = _step_of(optimizer)
        if not isinstance(step, types.FunctionType) or _is_wrapped(step):
            return
        if any(step is function for function, _ in self._codes.values()) or not _may_not_call_constructor(optimizer):
            return
        key = f"{full_name(step)} {next(_numbers)}"  # local classes may share a name
        self._codes[key] = (step, step.__code__)
        _originals[key] = untouched(step)
        step.__code__ = forwarding_code(step, in_step, imported=__name__, known_as=key)
