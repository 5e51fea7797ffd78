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
from habana_mp.patches.tools.code_exchange import forwarding_code, untouched

_SLOT = Assumption(
    "cpython.function-slot",
    assumed="a call of a Python function goes to its vectorcall slot, or runs the code that the function has",
    check="a sample is called by bytecode that ran before and by new bytecode, by its name, as a method and as "
    "`f(*x)`, and each call reaches the slot; where some do not, also with exchanged code",
    otherwise="`convert(within=...)` and reports of modules are refused, and nothing has changed",
)


class _Tapped:
    """The function while it is tapped."""

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function
        self._code = function.__code__
        self._forwarding: types.CodeType | None = None
        #: The function that handles calls: the tapped one, or another one with its code.
        self.answering = function
        if not _reaches_slot(exchanged=False):
            self.answering = untouched(function)
            self._forwarding = forwarding_code(function, call_directly, imported=__name__)

    def exchange_code(self) -> None:
        if self._forwarding is not None:
            self.function.__code__ = self._forwarding

    def put_code_back(self) -> None:
        if self._forwarding is not None and self.function.__code__ is self._forwarding:
            self.function.__code__ = self._code


class _Tap:
    """The last tapped function, and those who need its calls."""

    tapped: Any = None
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


def begin(user: str) -> tuple[Any, Any]:
    """Returns the function whose calls the core is to tap, and the function that handles them."""
    if not _Tap.users:
        function: Any = torch.nn.Module._call_impl
        _Tap.tapped = _Tapped(function)
    _Tap.users.add(user)
    _Tap.tapped.exchange_code()
    return _Tap.tapped.function, _Tap.tapped.answering


def end(user: str) -> None:
    """This user needs the calls no longer. Without any user, the function gets its code back."""
    _Tap.users.discard(user)
    if not _Tap.users and _Tap.tapped is not None:
        _Tap.tapped.put_code_back()


def code_of_calls() -> types.CodeType | None:
    """Returns the code that a module's call runs, tapped or not, or None if that is not a Python function."""
    function = torch.nn.Module._call_impl
    is_tapped = _Tap.users and function is _Tap.tapped.function
    code: types.CodeType | None = getattr(_Tap.tapped.answering if is_tapped else function, "__code__", None)
    return code


def call_directly(_: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Called by the new code. torch.compile reads this function, and the call that it makes in that case."""
    tapped = _Tap.tapped
    if torch.compiler.is_dynamo_compiling():
        return tapped.answering(*arguments, **keywords)
    return _core.call_by_slot(tapped.function, tapped.answering, arguments, keywords)


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
