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
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

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


class _Original(NamedTuple):
    """Holds the function and the code that a step had before."""

    function: types.FunctionType
    code: types.CodeType


#: The attribute of a replaced step that holds its original. So a class that a program drops is freed with its step.
_ATTRIBUTE = "_habana_mp_original"

_steps: dict[str, weakref.ref[types.FunctionType]] = {}
#: A step keeps its key after `restore`, since another thread may just have read the code that names it.
_keys: weakref.WeakKeyDictionary[types.FunctionType, str] = weakref.WeakKeyDictionary()
_numbers = itertools.count()


def in_step(key: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces the code of such a step. The core looks for this function in the call stack."""
    step: Any = _steps[key]()
    original = vars(step).get(_ATTRIBUTE)
    # Without one another thread has restored the step meanwhile: it has its own code again.
    run = step if original is None else original.function
    if not isinstance(arguments[0], Optimizer) or _is_wrapped(type(arguments[0]).step):
        return run(*arguments, **keywords)
    given = before_step(arguments[0], arguments, keywords)
    if given is not None:
        arguments, keywords = given
    try:
        return run(*arguments, **keywords)
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
        self._hook: Any = None

    def install(self, settings: Settings) -> None:
        for optimizer in set(_subclasses(Optimizer)):
            _exchange(optimizer)
        if "__init_subclass__" not in vars(Optimizer):

            def look(made: type[Any], /, **options: Any) -> None:
                super(Optimizer, made).__init_subclass__(**options)  # type: ignore[misc]  # `made` is a subclass
                _exchange(made)

            self._hook = classmethod(look)
            Optimizer.__init_subclass__ = self._hook  # type: ignore[method-assign]  # removed by `uninstall`

    def uninstall(self) -> None:
        if self._hook is not None and vars(Optimizer).get("__init_subclass__") is self._hook:
            del Optimizer.__init_subclass__
        self._hook = None
        for reference in list(_steps.values()):
            step: Any = reference()
            original = None if step is None else vars(step).pop(_ATTRIBUTE, None)
            if original is not None:
                step.__code__ = original.code


def _exchange(optimizer: type) -> None:
    step = _step_of(optimizer)
    if not isinstance(step, types.FunctionType) or _is_wrapped(step) or _ATTRIBUTE in vars(step):
        return
    if not _may_not_call_constructor(optimizer):
        return
    key = _keys.get(step)
    if key is None:
        key = _keys[step] = f"{full_name(step)} {next(_numbers)}"  # local classes may share a name
        _steps[key] = weakref.ref(step, functools.partial(_forget, key))
    forwarding = forwarding_code(step, in_step, imported=__name__, known_as=key)
    original = _Original(untouched(step), step.__code__)
    vars(step)[_ATTRIBUTE] = original
    step.__code__ = forwarding


def _forget(key: str, _: weakref.ref[types.FunctionType]) -> None:
    del _steps[key]
