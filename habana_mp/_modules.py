"""``convert(within=...)``: the lists speak only while the forward of a module runs.

The core watches the calls of modules. It sees none in code that torch.compile reads: there a module's call is made a
region of the core's number (``_marks.py``), so that its beginning and its end are in the graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Literal

import torch

from habana_mp import _core
from habana_mp._composites import Replacement
from habana_mp._imports import WhenImported
from habana_mp._marks import as_autocast, constant_in_graph

#: What ``within`` of ``convert`` may be.
Given = str | torch.nn.Module | Iterable[torch.nn.Module] | None
#: What it comes to: None for everywhere, ``"modules"`` for any module, or the modules that are meant.
Within = Literal["modules"] | list[torch.nn.Module] | None


def checked(within: Given) -> Within:
    """What ``within`` comes to.

    Raises:
        ValueError: it is none of what it may be.
    """
    if within is None or (isinstance(within, str) and within == "modules"):
        return within  # type: ignore[return-value]  # that very string
    if isinstance(within, torch.nn.Module):
        return [within]
    try:
        modules = [] if isinstance(within, str) else list(within)
    except TypeError:
        modules = []
    wrong = next((one for one in modules if not isinstance(one, torch.nn.Module)), within)
    if not modules or wrong is not within:
        what = 'None, "modules", a module or a list of modules'
        raise ValueError(f"`within` must be {what}; got {type(wrong).__name__}: {wrong!r}")
    return modules


class Modules:
    """The watch over modules' calls."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._in_graphs = ModulesInGraphs()

    @staticmethod
    def check(within: Within) -> None:
        """Raise where :meth:`install` would."""
        if within is not None:
            _core.check_modules(torch.nn.Module._call_impl)

    def install(self, within: Within) -> None:
        if within is None:
            self.uninstall()
            return
        modules = None if within == "modules" else within
        references = {} if modules is None else {id(one): weakref.ref(one, self._forget) for one in modules}
        _core.watch_modules(torch.nn.Module._call_impl, modules)
        self._references = references
        self._in_graphs.install()

    def _forget(self, gone: weakref.ref[torch.nn.Module]) -> None:
        """Another object may get the address of one that has gone."""
        for key, reference in list(self._references.items()):
            if reference is gone:
                del self._references[key]
                alive = [one for one in (reference() for reference in self._references.values()) if one is not None]
                _core.watch_modules(torch.nn.Module._call_impl, alive)

    def uninstall(self) -> None:
        self._references = {}
        self._in_graphs.uninstall()
        _core.stop_watching_modules()


class ModulesInGraphs(WhenImported):
    """The calls of modules that Dynamo traces."""

    name = "torch._dynamo.variables.nn_module"
    _replacements: tuple[Replacement, ...] = ()

    def do(self, module: Any) -> None:
        def call(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            variable, tx, args, kwargs = arguments
            if not _core.begins_to_speak(_module_of(variable, tx)):
                return original(*arguments, **keywords)
            from torch._dynamo.variables import UserFunctionVariable  # which imports this module itself

            function: Any = _call_as_region
            return UserFunctionVariable(function).call_function(tx, [variable, *args], kwargs)

        kinds = (getattr(module, name) for name in ("NNModuleVariable", "UnspecializedNNModuleVariable"))
        self._replacements = tuple(Replacement(vars(kind)["call_function"], call) for kind in kinds)
        for replacement in self._replacements:
            replacement.install()

    def undo(self, module: Any) -> None:
        for replacement in self._replacements:
            replacement.uninstall()
        self._replacements = ()


def _module_of(variable: Any, tx: Any) -> Any:
    key = getattr(variable, "module_key", None)
    return variable.value if key is None else tx.output.get_submodule(key)


@constant_in_graph
def _number() -> int:
    return _core.number_of_modules()


def _call_as_region(module: Any, *args: Any, **kwargs: Any) -> Any:
    """What Dynamo reads instead of the call of a module."""
    with as_autocast(_number()):
        return module(*args, **kwargs)
