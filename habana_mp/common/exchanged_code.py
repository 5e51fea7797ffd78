"""The code that functions had before this package exchanged it."""

from __future__ import annotations

import types
from weakref import WeakKeyDictionary

_former: WeakKeyDictionary[types.CodeType, types.CodeType] = WeakKeyDictionary()


def remember(code: types.CodeType, former: types.CodeType) -> None:
    """Notes the code that ``code`` is made to replace."""
    _former[code] = former


def code_of(function: types.FunctionType) -> types.CodeType:
    """Returns the function's own code, also while it is exchanged."""
    return _former.get(function.__code__, function.__code__)
