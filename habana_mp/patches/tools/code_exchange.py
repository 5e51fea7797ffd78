"""Replaces the code of a Python function.

The function keeps its identity: its code object is replaced by one with the same parameters. The new code passes them,
and the original function, to the replacement. Aliases of the function follow the change, and restoring the old code
undoes it completely.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import types
import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from habana_mp.common.exchanged_code import remember
from habana_mp.common.ledger import Assumption, UnmetError, holds, require
from habana_mp.patches.tools.patch import Patch, Settings

_PLACEHOLDER = "habana_mp: replaced by the function to call"

_CODE = Assumption(
    "cpython.exchanged-code",
    assumed="a function of Python takes another code object with the same free variables, and then runs that",
    check="it is done to a function of our own, with its arguments of each kind",
    otherwise="convert refuses",
)


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


def forwarding_code(
    function: types.FunctionType, call: Callable[..., Any], *, imported: str = "", known_as: str = ""
) -> types.CodeType:
    """Returns a code object with the parameters of ``function`` that passes them to ``call(args, kwargs)``.

    torch.compile does not read code that holds a function as a constant. With ``imported``, the name of a module,
    ``call`` is a function of that module and is imported in each call. Its first argument is then the full name of
    ``function``, or ``known_as``.
    """
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
    called = f"{call.__name__}({(known_as or full_name(function))!r}, (" if imported else f"{_PLACEHOLDER!r}(("
    statements = [free] if free else []
    if imported:
        statements.append(f"from {imported} import {call.__name__}")
    statements.append(f"return {called}{''.join(a + ', ' for a in arguments)}), {{{', '.join(keywords)}}})")
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
    made = made.replace(
        co_consts=tuple(call if constant == _PLACEHOLDER else constant for constant in made.co_consts),
        co_firstlineno=code.co_firstlineno,
        co_name=code.co_name,
    )
    remember(made, code)
    return made


def _inner_code(code: types.CodeType) -> types.CodeType:
    return next(constant for constant in code.co_consts if isinstance(constant, types.CodeType))


class Replacement:
    """A Python function of torch whose calls go to ``call(original, args, kwargs)`` while it is installed."""

    def __init__(self, function: Any, call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self._function = function
        self._code = function.__code__
        original = untouched(function)
        self._forwarding = forwarding_code(function, lambda arguments, keywords: call(original, arguments, keywords))

    def install(self) -> None:
        self._function.__code__ = self._forwarding

    def uninstall(self) -> None:
        self._function.__code__ = self._code


class ReplacedFunction(Patch):
    """Replaces one torch function by another one."""

    assumption: ClassVar[Assumption]
    _replacement: Replacement | None = None

    @staticmethod
    @abstractmethod
    def find() -> Any:
        """Returns the function to replace."""

    @staticmethod
    @abstractmethod
    def call(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Runs in place of the function, which is passed as ``original``."""

    def check(self, settings: Settings) -> None:
        require(_CODE, _exchanges_code)

    def install(self, settings: Settings) -> None:
        if self._replacement is None and holds(self.assumption, self._is_as_expected):
            self._replacement = Replacement(self.find(), self.call)
            self._replacement.install()

    def uninstall(self) -> None:
        if self._replacement is not None:
            self._replacement.uninstall()
            self._replacement = None

    def _is_as_expected(self) -> bool:
        function = self.find()
        if not isinstance(function, types.FunctionType):
            raise UnmetError(f"it is {function!r}")
        code = function.__code__
        return bool(code.co_argcount or code.co_flags & inspect.CO_VARARGS)


@functools.cache
def _exchanges_code() -> bool:
    outer = object()

    def sample(a: Any, /, b: Any = 2, *c: Any, d: Any = 4, **e: Any) -> Any:
        return outer, a, b, c, d, e

    expected = sample(1), sample(1, 3, 5, d=6, f=7)
    given = []

    def call(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        given.append(arguments)
        return original(*arguments, **keywords)

    replacement = Replacement(sample, call)
    replacement.install()
    got = sample(1), sample(1, 3, 5, d=6, f=7)
    replacement.uninstall()
    return got == expected == (sample(1), sample(1, 3, 5, d=6, f=7)) and given == [(1, 2), (1, 3, 5)]
