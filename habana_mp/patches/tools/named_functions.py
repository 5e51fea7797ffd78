"""Named functions of torch and of libraries that are replaced by others.

A table lists the functions of each module. Their code is replaced once the module is imported.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from fnmatch import fnmatchcase as fnmatch
from typing import Any, NamedTuple

from habana_mp.common.ledger import Assumption, UnmetError, holds
from habana_mp.patches.tools.exchange import Call, full_name
from habana_mp.patches.tools.when_imported import WhenImported

#: By module: functions and methods. ``*.method`` stands for every class of the module that defines such a method,
#: ``*Name*.method`` for the classes whose names match, ``*`` alone for every public function of the module.
Table = dict[str, tuple[str, ...]]


class Exchange(NamedTuple):
    """Functions, and their replacement."""

    call: Call
    table: Table
    assumption: Assumption
    #: The number of arguments that the replacement takes by position.
    positional: int = 0
    #: Names that the function's own code must use, because the replacement relies on them.
    names: tuple[str, ...] = ()
    #: True if the module needs to have only one of them.
    some: bool = False

    def patches(self) -> Iterator[ExchangedFunctions]:
        """Yields one patch for each module."""
        for module, names in self.table.items():
            yield ExchangedFunctions(self, module, names)


def assumption_of_functions(name: str, what: str, otherwise: str) -> Assumption:
    """Returns the assumption that the functions named in a table exist."""
    return Assumption(
        name,
        assumed=what,
        check="once their module is imported: each is there, a function of Python, and takes what ours rely on",
        otherwise=f"of those that are not, {otherwise}",
    )


def assumption_of_library(library: str, what: str, otherwise: str = "") -> Assumption:
    """Returns the assumption that a library has the functions that do this."""
    as_listed = "what they call goes by the lists"
    return assumption_of_functions(
        f"{library}.functions", f"{library} has the functions that {what}", as_listed + otherwise
    )


def functions_of(module: types.ModuleType, names: tuple[str, ...]) -> Iterator[types.FunctionType]:
    """Returns the functions of a module that these names stand for, each once."""
    found: dict[int, types.FunctionType] = {}
    for name in names:
        owner, _, attribute = name.rpartition(".")
        owners: list[Any] = [vars(module).get(owner)] if owner else [module]
        if "*" in owner:
            owners = [one for key, one in vars(module).items() if isinstance(one, type) and fnmatch(key, owner)]
        for one in filter(None, owners):
            named = vars(one) if attribute == "*" else {attribute: vars(one).get(attribute)}
            for key, given in named.items():
                value = getattr(given, "__func__", given)  # for a class method
                # A module or a class may have a function of another module.
                is_own = getattr(value, "__module__", None) == module.__name__ and (key == attribute or key[:1] != "_")
                if isinstance(value, types.FunctionType) and ("*" not in name or is_own):
                    found[id(value)] = value
    return iter(found.values())


class ExchangedFunctions(WhenImported):
    """Replaces the functions of one module."""

    def __init__(self, exchange: Exchange, name: str, functions: tuple[str, ...]) -> None:
        super().__init__()
        self.name = name
        self._exchange = exchange
        self._functions = functions
        self._assumption = exchange.assumption

    def do(self, module: Any) -> None:
        for function in self._found(module):
            self.exchanged.replace(function, self._exchange.call, is_read=True)

    def _found(self, module: Any) -> Iterator[types.FunctionType]:
        groups = [self._functions] if self._exchange.some else [(name,) for name in self._functions]
        usable: dict[int, types.FunctionType] = {}
        for names in groups:
            functions = list(functions_of(module, names))
            test = functools.partial(self._are_as_expected, functions, names)
            if holds(self._assumption, test, f"{self.name}.{names[0]} {self._exchange.call.__name__}"):
                usable |= {id(one): one for one in functions}
        return iter(usable.values())

    def _are_as_expected(self, functions: list[types.FunctionType], names: tuple[str, ...]) -> bool:
        if not functions:
            raise UnmetError(f"{self.name}.{names[0]} is missing")
        for function in functions:
            code = function.__code__
            takes_any = code.co_flags & inspect.CO_VARARGS
            if not takes_any and code.co_argcount < self._exchange.positional:
                raise UnmetError(f"{full_name(function)} takes fewer arguments")
            if not {*code.co_varnames, *code.co_names}.issuperset(self._exchange.names):
                raise UnmetError(f"{full_name(function)} does not know {', '.join(self._exchange.names)}")
        return True
