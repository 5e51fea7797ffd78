"""The code that functions had before this package exchanged it. It is here since :mod:`habana_mp.ops` reads such code,
and :mod:`habana_mp.patches`, which exchanges it, is above that."""

from __future__ import annotations

import types
import weakref

#: By the identity of the code that replaces it: other code with the same content is not meant.
_former: dict[int, types.CodeType] = {}


def remember(code: types.CodeType, former: types.CodeType) -> None:
    """Notes the code that ``code`` is made to replace."""
    _former[id(code)] = former
    weakref.finalize(code, _former.pop, id(code), None)


def code_of(function: types.FunctionType) -> types.CodeType:
    """Returns the function's own code, also while it is exchanged."""
    code = function.__code__
    while id(code) in _former:
        code = _former[id(code)]
    return code
