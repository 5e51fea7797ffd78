"""Other code for a function of Python.

The function keeps its identity: its code object is exchanged for one with the same parameters, which hands them to
whoever is to answer, with the function as it was. Aliases taken before obey, and putting the old code back leaves
nothing behind.
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
    """A function that does what ``function`` does now, whatever happens to its code later."""
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    return copy


def full_name(function: types.FunctionType) -> str:
    """Where a function is defined."""
    return f"{function.__module__}.{function.__qualname__}"


def forwarding_code(
    function: types.FunctionType, call: Callable[..., Any], *, imported: str = "", known_as: str = ""
) -> types.CodeType:
    """A code object with the parameters of ``function`` that hands them to ``call(args, kwargs)``.

    torch.compile does not read code that holds a function as a constant. With ``imported``, the name of a module,
    ``call`` is a function of that module and is imported in each call; before the rest it gets ``function``'s name, or
    what ``known_as`` says.
    """
    code = function.__code__
    parameters: list[str] = []
    arguments: list[str] = []
    keywords: list[str] = []
    # The defaults stay with the function object; the parameters only need their names and kinds.
    names = iter(code.co_varnames)
    for index, name in enumerate(itertools.islice(names, code.co_argcount)):
        parameters.append(name)
        # The core knows what is written into by its name. What comes after it is handed over by name too.
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
    # A function only takes code with as many free variables as its own has, so the new code names them too.
    free = "".join(name + ", " for name in code.co_freevars)
    called = f"{call.__name__}({(known_as or full_name(function))!r}, (" if imported else f"{_PLACEHOLDER!r}(("
    statements = [free] if free else []
    if imported:
        statements.append(f"from {imported} import {call.__name__}")
    statements.append(f"return {called}{''.join(a + ', ' for a in arguments)}), {{{', '.join(keywords)}}})")
    source = (
        f"def enclosing({free}):\n"
        # One line: a traceback shows the function's first.
        f"    def {code.co_name}({', '.join(parameters)}): {'; '.join(statements)}\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        module = compile(source, code.co_filename, "exec", dont_inherit=True)
    made = _inner_code(_inner_code(module))
    return made.replace(
        co_consts=tuple(call if constant == _PLACEHOLDER else constant for constant in made.co_consts),
        co_firstlineno=code.co_firstlineno,
    )


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
    """One function of torch's in whose stead another is called."""

    assumption: ClassVar[Assumption]
    _replacement: Replacement | None = None

    @staticmethod
    @abstractmethod
    def find() -> Any:
        """The function."""

    @staticmethod
    @abstractmethod
    def call(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """What is called instead, with the function as it was."""

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
