"""Calls of ``torch.nn.Module._call_impl``, seen by the core however Python code makes them.

The core replaces the function's vectorcall slot. CPython 3.11 runs an explicit call in Python code
(``module._call_impl(x)``) in the caller's frame and does not read the slot. For such calls the function also gets other
code, which passes the call to the slot; a function with the original code handles it.
"""

from __future__ import annotations

import functools
import types
from typing import Any, ClassVar

import torch

from habana_mp import _core
from habana_mp.common.ledger import Assumption, UnmetError, require
from habana_mp.patches.tools.exchange import Exchanged, forwarding_code, untouched

_SLOT = Assumption(
    "cpython.function-slot",
    assumed="a call of a Python function goes to its vectorcall slot, or runs the code that the function has",
    check="a sample is called by bytecode that ran before and by new bytecode, by its name, as a method and as "
    "`f(*x)`, and each call reaches the slot; where some do not, also with exchanged code",
    otherwise="`convert(within=...)` and reports of modules are refused, and nothing has changed",
)


class _Tap:
    """The tapped function, the one that handles its calls, and those who need these."""

    function: Any = None
    #: The tapped function, or the original if the tapped one got other code.
    answering: Any = None
    exchanged = Exchanged()
    users: ClassVar[set[str]] = set()


def check() -> None:
    """Raises if calls of modules cannot be tapped."""
    _core.check_modules(torch.nn.Module._call_impl)
    require(_SLOT, _every_call_reaches_slot)


def can_tap() -> bool:
    """True if calls of modules can be tapped."""
    try:
        check()
    except RuntimeError:
        return False
    return True


def begin(user: str) -> None:
    """This user needs the calls from now on."""
    if not _Tap.users:
        _Tap.function = _Tap.answering = torch.nn.Module._call_impl
        if not _reaches_slot(exchanged=False):
            _Tap.answering = _Tap.exchanged.replace(_Tap.function, call_directly, is_read=True)
        _core.tap_modules(_Tap.function, _Tap.answering)
    _Tap.users.add(user)


def end(user: str) -> None:
    """This user needs the calls no longer. Without any user, the function is as before."""
    _Tap.users.discard(user)
    if not _Tap.users:
        _core.untap_modules()
        _Tap.exchanged.put_back()


def code_of_calls() -> types.CodeType | None:
    """Returns the code that a module's call runs, tapped or not, or None if that is not a Python function."""
    function = torch.nn.Module._call_impl
    is_tapped = _Tap.users and function is _Tap.function
    code: types.CodeType | None = getattr(_Tap.answering if is_tapped else function, "__code__", None)
    return code


def call_directly(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Called by the new code. torch.compile reads this function, and the call that it makes in that case."""
    if torch.compiler.is_dynamo_compiling():
        return original(*arguments, **keywords)
    return _core.call_by_slot(_Tap.function, original, arguments, keywords)


def _every_call_reaches_slot() -> bool:
    if not (_reaches_slot(exchanged=False) or _reaches_slot(exchanged=True)):
        raise UnmetError("calls of a sample do not reach its slot, also with exchanged code")
    return True


@functools.cache
def _reaches_slot(*, exchanged: bool) -> bool:
    """True if each call of a sample reaches its slot."""

    def function(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self, args, kwargs

    sample: Any = function
    holder: Any = type("Holder", (), {"method": sample})()
    calls: list[Any] = [
        lambda: sample(holder, 1, a=2),
        lambda: holder.method(1, a=2),
        lambda: sample(*(holder, 1), a=2),
        lambda: sample(holder),
        lambda: holder.method(),
    ]
    fresh = [types.FunctionType(one.__code__.replace(), globals(), None, None, one.__closure__) for one in calls]
    for _ in range(200):  # until the interpreter has specialized the calls
        expected = [one() for one in calls]
    code, answering = sample.__code__, untouched(sample) if exchanged else sample
    if exchanged:
        sample.__code__ = forwarding_code(sample, lambda *given: _core.call_by_slot(sample, answering, *given))
    got, count = _core.count_calls(sample, answering, lambda: [one() for one in (*calls, *fresh)])
    sample.__code__ = code
    return bool(count == len(got) and got == expected * 2 == [one() for one in (*calls, *fresh)])
