"""Calls of ``torch.nn.Module._call_impl``, which the core taps at the function's vectorcall slot.

torch calls it with unpacked arguments, ``self._call_impl(*args, **kwargs)``, and CPython makes such a call by the slot.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from habana_mp import _core
from habana_mp.common.ledger import Assumption, UnmetError, holds, require

_CALLS = Assumption(
    "torch.module-calls",
    assumed="`torch.nn.Module._call_impl` runs every call of a module, as a function of Python, and a call of such a "
    "function goes to its vectorcall slot",
    check="the core looks at how it is called; a sample is called as torch calls it, by bytecode that ran before and "
    "by new bytecode, and each call reaches the slot",
    otherwise='`convert(within=...)`, `convert(results="fp32")` and reports of modules and lines are refused; without '
    "them nothing is missing",
)


#: The function whose calls the core taps, also if other code puts one of its own around it later.
CALL_IMPL: Any = torch.nn.Module._call_impl

#: Those that need the calls.
_users: set[str] = set()

#: The code that a module's call runs, or None if that is not a Python function.
CODE_OF_CALLS: types.CodeType | None = getattr(CALL_IMPL, "__code__", None)


def require_tap() -> None:
    """Raises if calls of modules cannot be tapped."""
    require(_CALLS, _can_tap)


def can_tap() -> bool:
    """True if calls of modules can be tapped."""
    return holds(_CALLS, _can_tap)


def _can_tap() -> bool:
    _core.check_modules(CALL_IMPL)
    if not _every_call_reaches_slot():
        raise UnmetError("calls of a sample do not reach its slot")
    return True


def begin(user: str) -> None:
    """This user needs the calls from now on."""
    if not _users:
        _core.tap_modules(CALL_IMPL)
    _users.add(user)


def end(user: str) -> None:
    """This user needs the calls no longer. Without any user, the function is as before."""
    _users.discard(user)
    if not _users:
        _core.untap_modules()


@functools.cache
def _every_call_reaches_slot() -> bool:
    def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self, args, kwargs

    def call(*args: Any, **kwargs: Any) -> Any:
        return holder.method(*args, **kwargs)

    holder: Any = type("Holder", (), {"method": sample})()
    fresh = types.FunctionType(call.__code__.replace(), globals(), None, None, call.__closure__)
    for _ in range(200):  # until the interpreter has specialized the calls
        expected = call(1, a=2)
    got, count = _core.count_calls(sample, lambda: [call(1, a=2), fresh(1, a=2)])
    return bool(count == 2 and got == [expected] * 2 == [call(1, a=2), fresh(1, a=2)])
