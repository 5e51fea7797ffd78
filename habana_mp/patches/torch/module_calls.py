"""``convert(within=...)``: the lists apply only while the forward of a module runs.

The core watches the calls of modules. It sees no calls in code that torch.compile reads: there a module's call becomes
a region with a number from the core (``region_dtypes.py``), so that the graph holds its beginning and end.
"""

from __future__ import annotations

import types
import weakref
from typing import Any

import torch

from habana_mp import _core
from habana_mp.common.ledger import Assumption, UnmetError, holds, require
from habana_mp.patches.tools import direct_calls
from habana_mp.patches.tools.code_exchange import Replacement
from habana_mp.patches.tools.compiled_functions import constant_in_graph
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.patches.tools.region_dtypes import as_autocast
from habana_mp.patches.tools.when_imported import WhenImported
from habana_mp.patches.torch.dynamo import compile_nothing

_CALLS = Assumption(
    "torch.module-calls",
    assumed="`torch.nn.Module._call_impl` runs every call of a module, as a function of Python",
    check="the core looks at how it is called",
    otherwise="`convert(within=...)` refuses; without `within` nothing is missing",
)

_CALLS_IN_GRAPHS = Assumption(
    "torch.dynamo-module-calls",
    assumed="Dynamo traces a module's call by `call_function` of NNModuleVariable and UnspecializedNNModuleVariable",
    check="both classes have it, as a function of Python with four parameters",
    otherwise="torch.compile compiles nothing while `convert(within=...)` is in force",
)


class ModuleCalls(Patch):
    """Watches the calls of modules."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._in_graphs = ModulesInGraphs()

    def check(self, settings: Settings) -> None:
        if settings.within is not None:
            require(_CALLS, _can_watch)

    def install(self, settings: Settings) -> None:
        within = settings.within
        if within is None:
            self.uninstall()
            return
        modules = None if within == "modules" else within
        references = {} if modules is None else {id(one): weakref.ref(one, self._forget) for one in modules}
        _core.watch_modules(*direct_calls.begin("within"), modules)
        self._references = references
        self._in_graphs.install()

    def _forget(self, gone: weakref.ref[torch.nn.Module]) -> None:
        """Removes a module that was destroyed: another object may get its address."""
        for key, reference in list(self._references.items()):
            if reference is gone:
                del self._references[key]
                alive = [one for one in (reference() for reference in self._references.values()) if one is not None]
                _core.watch_modules(*direct_calls.begin("within"), alive)

    def uninstall(self) -> None:
        self._references = {}
        self._in_graphs.uninstall()
        _core.stop_watching_modules()
        direct_calls.end("within")


def _can_watch() -> bool:
    direct_calls.check()
    return True


class ModulesInGraphs(WhenImported):
    """Turns the module calls that Dynamo traces into regions."""

    name = "torch._dynamo.variables.nn_module"
    _replacements: tuple[Replacement, ...] = ()

    def do(self, module: Any) -> None:
        def call(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            variable, tx, args, kwargs = arguments
            if not _core.begins_to_apply_lists(_module_of(variable, tx)):
                return original(*arguments, **keywords)
            from torch._dynamo.variables import UserFunctionVariable  # which itself imports this module

            function: Any = _call_as_region
            return UserFunctionVariable(function).call_function(tx, [variable, *args], kwargs)

        if not holds(_CALLS_IN_GRAPHS, lambda: all(map(_is_as_expected, _callers(module)))):
            compile_nothing()
            return
        self._replacements = tuple(Replacement(one, call) for one in _callers(module))
        for replacement in self._replacements:
            replacement.install()

    def undo(self, module: Any) -> None:
        for replacement in self._replacements:
            replacement.uninstall()
        self._replacements = ()


def _callers(module: Any) -> list[Any]:
    kinds = (getattr(module, name) for name in ("NNModuleVariable", "UnspecializedNNModuleVariable"))
    return [vars(kind)["call_function"] for kind in kinds]


def _is_as_expected(caller: Any) -> bool:
    if not isinstance(caller, types.FunctionType) or caller.__code__.co_argcount != 4:
        raise UnmetError(f"`call_function` is {caller!r}")
    return True


def _module_of(variable: Any, tx: Any) -> Any:
    key = getattr(variable, "module_key", None)
    return variable.value if key is None else tx.output.get_submodule(key)


@constant_in_graph
def _number() -> int:
    return _core.number_of_modules()


def _call_as_region(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Read by Dynamo in place of the call of a module."""
    with as_autocast(_number()):
        return module(*args, **kwargs)
