"""Replaces functions and attributes, and puts them back.

A Python function keeps its identity: its code object is replaced by one with the same parameters. The new code passes
them, and the original function, to the replacement. Aliases of the function follow the change, and restoring the old
code undoes it completely.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import types
import warnings
from collections.abc import Callable
from typing import Any

_PLACEHOLDER = "habana_mp: replaced by the function to call"

#: What replaces a function: it gets the original, the arguments and the keywords.
Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

#: What code that torch.compile reads calls, by name: it cannot hold a function as a constant.
replaced: dict[str, Callable[[tuple[Any, ...], dict[str, Any]], Any]] = {}

_MISSING = object()


def untouched(function: types.FunctionType) -> types.FunctionType:
    """Returns a copy of ``function`` that does not change when the code of ``function`` does."""
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    return copy


def full_name(function: types.FunctionType) -> str:
    """Returns the module and qualified name of a function."""
    return f"{function.__module__}.{function.__qualname__}"


class Exchanged:
    """The replaced attributes with their former and their new values, the latest one last. In a `with` statement they
    are put back at the end of the block."""

    def __init__(self) -> None:
        self._exchanged: list[tuple[Any, str, Any, Any]] = []

    def __enter__(self) -> Exchanged:
        return self

    def __exit__(self, *_: object) -> None:
        self.put_back()

    def exchange(self, owner: Any, name: str, value: Any) -> None:
        """Sets this attribute on ``owner`` itself; inherited attributes stay unchanged."""
        self._exchanged.append((owner, name, _own(owner, name), value))
        setattr(owner, name, value)

    def replace(self, function: Any, call: Call, *, is_read: bool = False) -> types.FunctionType:
        """Makes calls of a Python function go to ``call(original, arguments, keywords)``. Returns the original.
        ``is_read``: torch.compile reads the new code, which takes a little longer."""
        original = untouched(function)
        if is_read:
            replaced[full_name(function)] = functools.partial(call, original)
            code = _read_code(function, function.__code__)
        else:
            code = forwarding_code(function, functools.partial(call, original))
        self.exchange(function, "__code__", code)
        return original

    def put_back(self) -> None:
        """Restores the former values. An attribute that other code has replaced since keeps its present value."""
        while self._exchanged:
            owner, name, before, value = self._exchanged[-1]
            if _own(owner, name) is value:
                if before is _MISSING:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)
            self._exchanged.pop()


def _own(owner: Any, name: str) -> Any:
    if isinstance(owner, types.ModuleType | types.FunctionType):  # its code and a setting are not among its variables
        return getattr(owner, name, _MISSING)
    return vars(owner).get(name, _MISSING)


@functools.cache
def _read_code(function: types.FunctionType, code: types.CodeType) -> types.CodeType:
    """Compiles the code once for each ``code`` of a function. This takes a large part of the time of ``convert``."""
    return forwarding_code(function, full_name(function))


def forwarding_code(function: types.FunctionType, call: str | Callable[..., Any]) -> types.CodeType:
    """Returns a code object with the parameters of ``function`` that passes them to ``call(args, kwargs)``. A string is
    a name in :data:`replaced`."""
    code = function.__code__
    parameters: list[str] = []
    arguments: list[str] = []
    keywords: list[str] = []
    # The defaults stay with the function object; the parameters only need their names and kinds.
    names = iter(code.co_varnames)
    for index, name in enumerate(itertools.islice(names, code.co_argcount)):
        parameters.append(name)
        # The core recognises a written argument by its name. All arguments after it are also passed by name.
        if name == "out" or keywords:
            keywords.append(f"{name!r}: {name}")
        else:
            arguments.append(name)
        if index + 1 == code.co_posonlyargcount:
            parameters.append("/")
    by_name = list(itertools.islice(names, code.co_kwonlyargcount))
    if code.co_flags & inspect.CO_VARARGS:
        several = next(names)
        parameters.append(f"*{several}")
        arguments.append(f"*{several}")
    elif by_name:
        parameters.append("*")
    parameters += by_name
    keywords += [f"{name!r}: {name}" for name in by_name]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        others = next(names)
        parameters.append(f"**{others}")
        keywords.append(f"**{others}")
    # A function accepts only code with as many free variables as its own, so the new code refers to them too.
    free = "".join(name + ", " for name in code.co_freevars)
    statements = [free] if free else []
    called = repr(_PLACEHOLDER)
    if isinstance(call, str):
        statements.append(f"from {__name__} import replaced as _habana_mp_replaced")
        called = f"_habana_mp_replaced[{call!r}]"
    statements.append(f"return {called}(({''.join(a + ', ' for a in arguments)}), {{{', '.join(keywords)}}})")
    name = code.co_name if code.co_name.isidentifier() else "function"  # a lambda has no name
    source = (
        f"def enclosing({free}):\n"
        # All on one line, because a traceback shows the first line of the function.
        f"    def {name}({', '.join(parameters)}): {'; '.join(statements)}\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        module = compile(source, code.co_filename, "exec", dont_inherit=True)
    made = _inner_code(_inner_code(module))
    return made.replace(
        co_consts=tuple(call if constant == _PLACEHOLDER else constant for constant in made.co_consts),
        co_firstlineno=code.co_firstlineno,
        co_name=code.co_name,
    )


def _inner_code(code: types.CodeType) -> types.CodeType:
    return next(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
