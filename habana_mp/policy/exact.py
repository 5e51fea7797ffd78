"""``convert(exact=...)``: code whose own operations no list lowers, as packages, modules, functions and classes."""

from __future__ import annotations

import functools
import importlib.machinery
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from habana_mp.common.specs import find_spec

#: One of the things that ``exact`` takes: the name of a package or module, or an object of Python.
Given = str | types.ModuleType | type | Callable[..., Any]

_WHAT = "the name of a package or module, a module, a function or a class"


@dataclass(frozen=True)
class ExactCode:
    """The code that a configuration runs exactly."""

    #: What it is called, one name for each thing that was given.
    names: tuple[str, ...] = ()
    #: Packages and modules by name. They may be imported later.
    modules: tuple[str, ...] = ()
    #: The beginnings of the names of other files.
    files: tuple[str, ...] = ()
    codes: tuple[types.CodeType, ...] = ()


NOTHING_EXACT = ExactCode()


def exact_code(given: Iterable[Given] | None) -> ExactCode:
    """Returns the checked form of the argument. Imports nothing.

    Raises:
        ValueError: something in it is wrong; the message has one line for each problem.
    """
    if given is None:
        return NOTHING_EXACT
    if isinstance(given, (str, types.ModuleType, type)) or not isinstance(given, Iterable):
        shown = repr(given) if isinstance(given, str) else getattr(given, "__name__", "...")
        raise ValueError(f"`exact` must be a list, as [{shown}]; each item is {_WHAT}; got {_described(given)}")
    names: list[str] = []
    modules: dict[str, None] = {}
    files: dict[str, None] = {}
    codes: dict[int, types.CodeType] = {}
    problems: list[str] = []
    for one in given:
        try:
            if isinstance(one, str):
                _check_name(one)
                modules[one] = None
            elif isinstance(one, types.ModuleType):
                files |= dict.fromkeys(_files_of_given(one))
            else:
                codes |= {id(code): code for code in _codes_of_given(one)}
            names.append(_name_of(one))
        except ValueError as error:
            problems.append(f"`exact`: {error}")
    if problems:
        raise ValueError("\n".join(problems))
    return ExactCode(tuple(names), tuple(modules), tuple(files), tuple(codes.values()))


def files_of(module: types.ModuleType) -> tuple[str, ...]:
    """Returns the beginnings of the names of a module's files: its folders if it is a package."""
    folders = getattr(module, "__path__", None)
    if folders is not None:
        return tuple(f"{folder}/" for folder in folders)
    file = getattr(module, "__file__", None)
    return () if file is None or _is_compiled(file) else (file,)


def _is_compiled(file: str) -> bool:
    return file.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))


def _described(one: object) -> str:
    return f"{type(one).__name__}: {one!r}"


def _name_of(one: Any) -> str:
    if isinstance(one, str):
        return one
    if isinstance(one, types.ModuleType):
        return one.__name__
    one = _innermost(one)
    name = getattr(one, "__qualname__", type(one).__qualname__)
    module = getattr(one, "__module__", None)
    return f"{module}.{name}" if module else str(name)


# ---- names and modules -----------------------------------------------------------------------------------------------


def _check_name(name: str) -> None:
    """Raises ValueError unless there is a module of this name that is written in Python."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f'a name must be that of a package or module, as "package.module"; got {name!r}')
    module = sys.modules.get(name)
    if module is not None:
        _files_of_given(module)
        return
    spec = find_spec(name)
    if spec is None:
        raise ValueError(_why_not_found(name))
    if spec.submodule_search_locations is None and (not spec.has_location or _is_compiled(spec.origin or "")):
        raise ValueError(_no_file(name))


def _why_not_found(name: str) -> str:
    owner, _, last = name.rpartition(".")
    if owner and find_spec(owner) is not None:
        return (
            f"there is no module {name!r}. There is {owner!r}: if `{last}` is a function or class in it, give the "
            f"object itself, as exact=[{name}]"
        )
    return f"there is no package or module {name!r}; a name is that by which `import` finds it"


def _no_file(name: str) -> str:
    return f"module {name!r} has no file of Python code; give the functions or classes of Python that compute"


def _files_of_given(module: types.ModuleType) -> tuple[str, ...]:
    found = files_of(module)
    if not found:
        raise ValueError(_no_file(module.__name__))
    return found


# ---- functions and classes -------------------------------------------------------------------------------------------


def _codes_of_given(one: Any) -> list[types.CodeType]:
    if isinstance(one, torch.nn.Module):
        kind = type(one).__name__
        raise ValueError(
            f"a module is no code: give its class, as exact=[{kind}], or use `hmp.keep(module)`, which runs the module "
            f"and all inside it in float32; got {kind}"
        )
    codes = list(_codes_of(one))
    if codes:
        return codes
    function = _innermost(one)
    if isinstance(one, type) or inspect.isroutine(function):
        what = f"class {_name_of(one)}" if isinstance(one, type) else f"builtin {function.__name__}"
        raise ValueError(
            f"{what} has no code in Python; to keep an operation in float32, name it in the float32 list, or give the "
            "function that calls it"
        )
    hint = f"; give its class, as exact=[{type(one).__name__}]" if callable(one) else ""
    raise ValueError(f"an item must be {_WHAT}; got {_described(one)}{hint}")


def _innermost(one: Any) -> Any:
    """Returns what a partial, a bound method or a decorated function calls in the end."""
    seen: set[int] = set()
    while id(one) not in seen:
        seen.add(id(one))
        if isinstance(one, (functools.partial, functools.partialmethod)):
            one = one.func
        elif isinstance(one, (types.MethodType, classmethod, staticmethod)):
            one = one.__func__
        elif not isinstance(one, type):
            one = inspect.getattr_static(one, "__wrapped__", one)
    return one


def _codes_of(one: Any) -> Iterator[types.CodeType]:
    """Yields the code of a function, or of the methods of a class, with all code inside."""
    if isinstance(one, type):
        for value in vars(one).values():
            is_inside = isinstance(value, type) and value.__qualname__.startswith(f"{one.__qualname__}.")
            if is_inside or not isinstance(value, type):
                yield from _codes_of(value)
    elif isinstance(one, property):
        for function in (one.fget, one.fset, one.fdel):
            yield from _codes_of(function)
    elif isinstance(one, functools.cached_property):
        yield from _codes_of(one.func)
    else:
        function = _innermost(one)
        if isinstance(function, types.FunctionType):
            yield from _with_inner(function.__code__)


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)
