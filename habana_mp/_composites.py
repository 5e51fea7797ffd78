"""Operations that torch writes in Python (``F.normalize``, ``F.softmin``, ``Tensor.__rtruediv__``).

Such a function keeps its identity too: its code object is exchanged for one with the same parameters that calls the
core with the function as it was. Aliases taken before obey, and putting the old code back leaves nothing behind.
"""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable
from typing import Any

from habana_mp import _core
from habana_mp._imports import WhenImported

_PLACEHOLDER = "habana_mp: replaced by the function to call"


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
    parameters, arguments, keywords = [], [], []
    # The defaults stay with the function object; the parameters only need their names and kinds.
    signature = inspect.signature(untouched(function)).parameters.values()
    kinds = inspect.Parameter
    seen_star = False
    for index, parameter in enumerate(signature):
        name = parameter.name
        if parameter.kind is kinds.VAR_POSITIONAL:
            parameters.append(f"*{name}")
            arguments.append(f"*{name}")
            seen_star = True
        elif parameter.kind is kinds.VAR_KEYWORD:
            parameters.append(f"**{name}")
            keywords.append(f"**{name}")
        elif parameter.kind is kinds.KEYWORD_ONLY:
            if not seen_star:
                parameters.append("*")
                seen_star = True
            parameters.append(name)
            keywords.append(f"{name!r}: {name}")
        else:
            parameters.append(name)
            # The core knows what is written into by its name. What comes after it is handed over by name too.
            if name == "out" or keywords:
                keywords.append(f"{name!r}: {name}")
            else:
                arguments.append(name)
            if index + 1 == code.co_posonlyargcount:
                parameters.append("/")
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


class _WholeInGraphs(WhenImported):
    """Dynamo notes the calls of a function and does not read its code. Of most of torch's it knows that by itself."""

    name = "torch._dynamo.trace_rules"

    def __init__(self, function: types.FunctionType) -> None:
        super().__init__()
        self._function = function
        self._is_known = True

    def do(self, module: Any) -> None:
        self._is_known = module.is_callable_allowed(self._function)
        if not self._is_known:
            module._allowed_callable_ids.add(id(self._function))

    def undo(self, module: Any) -> None:
        if not self._is_known:
            module._allowed_callable_ids.remove(id(self._function))


class Composite(Replacement):
    """One Python function of torch that lists cover."""

    def __init__(self, function: types.FunctionType, operation: str) -> None:
        engine = _core.Composite(function, untouched(function), operation)
        super().__init__(function, lambda _, arguments, keywords: engine.call(arguments, keywords))
        self._in_graphs = _WholeInGraphs(function)

    def install(self) -> None:
        super().install()
        self._in_graphs.install()

    def uninstall(self) -> None:
        self._in_graphs.uninstall()
        super().uninstall()
