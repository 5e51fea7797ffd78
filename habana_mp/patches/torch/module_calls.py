"""``convert(within=...)``: the lists apply only while the forward of a module runs.

The core taps the calls of modules. It sees no calls in code that torch.compile reads: there a module's call becomes
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
from habana_mp.patches.tools.compiled_functions import constant_in_graph
from habana_mp.patches.tools.in_containers import InFloat32, holds_dtype
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.patches.tools.region_dtypes import as_autocast
from habana_mp.patches.tools.when_imported import WhenImported
from habana_mp.patches.torch.dynamo import compile_nothing
from habana_mp.policy.kept import ATTRIBUTE, are_there_kept

CALLS = Assumption(
    "torch.module-calls",
    assumed="`torch.nn.Module._call_impl` runs every call of a module, as a function of Python",
    check="the core looks at how it is called",
    otherwise='`convert(within=...)` and `convert(results="fp32")` refuse; without them nothing is missing',
)

_CALLS_IN_GRAPHS = Assumption(
    "torch.dynamo-module-calls",
    assumed="Dynamo traces a module's call by `call_function` of NNModuleVariable and UnspecializedNNModuleVariable",
    check="both classes have it, as a function of Python with four parameters",
    otherwise="torch.compile compiles nothing while `convert(within=...)` is in force",
)


class ModuleCalls(Patch):
    """Taps the calls of modules."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[torch.nn.Module]] = {}

    def check(self, settings: Settings) -> None:
        if not settings.options.lowers_everywhere:
            require(CALLS, can_tap_calls)

    def install(self, settings: Settings) -> None:
        if settings.options.lowers_everywhere:
            self.uninstall()
            return
        modules = settings.options.modules
        references = {} if modules is None else {id(one): weakref.ref(one, self._forget) for one in modules}
        direct_calls.begin("within")
        _core.wait_for_modules(modules)
        self._references = references
        modules_in_graphs.begin("within")

    def _forget(self, gone: weakref.ref[torch.nn.Module]) -> None:
        """Removes a module that was destroyed: another object may get its address."""
        for key, reference in list(self._references.items()):
            if reference is gone:
                del self._references[key]
                alive = [one for one in (reference() for reference in self._references.values()) if one is not None]
                _core.wait_for_modules(alive)

    def uninstall(self) -> None:
        self._references = {}
        modules_in_graphs.end("within")
        _core.stop_waiting_for_modules()
        direct_calls.end("within")


def can_tap_calls() -> bool:
    direct_calls.check()
    return True


class ModulesInGraphs(WhenImported):
    """Turns the module calls that Dynamo traces into regions."""

    name = "torch._dynamo.variables.nn_module"

    def __init__(self) -> None:
        super().__init__()
        self._users: set[str] = set()
        #: The modules whose calls are traced as regions, from the outermost on, and the numbers of these.
        self._being_called: list[tuple[torch.nn.Module, Any] | None] = []
        self._regions: list[int] = []
        #: The lower precision, if what leaves a model becomes float32.
        self.converted: torch.dtype | None = None

    def begin(self, user: str) -> None:
        """Turns the calls into regions, for `within`, for rules by module or for the results of models."""
        self._users.add(user)
        self.install()

    def end(self, user: str) -> None:
        self._users.discard(user)
        if not self._users:
            self.uninstall()

    def do(self, module: Any) -> None:
        def call(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            variable, tx, args, kwargs = arguments
            called = _module_of(variable, tx)
            if self._being_called and self._being_called[-1] == (called, tx.output):
                self._being_called[-1] = None  # the call inside the region
                return original(*arguments, **keywords)
            traced = _core.TracedCall(called)
            try:
                converts = traced.is_outermost
                if traced.region < 0 and not are_there_kept() and not converts:
                    return original(*arguments, **keywords)
                from torch._dynamo.variables import UserFunctionVariable  # which itself imports this module

                function: Any = _call_in_place if traced.region < 0 else _call_as_region
                if converts and not any(one.dtype is self.converted for one in called.parameters()):
                    function = _call_and_convert if traced.region < 0 else _call_as_region_and_convert
                self._being_called.append((called, tx.output))
                self._regions.append(traced.region)
                try:
                    return UserFunctionVariable(function).call_function(tx, [variable, *args], kwargs)
                finally:
                    self._being_called.pop()
                    self._regions.pop()
            finally:
                traced.leave()

        if not holds(_CALLS_IN_GRAPHS, lambda: all(map(_is_as_expected, _callers(module)))):
            compile_nothing()
            return
        for one in _callers(module):
            self.exchanged.replace(one, call)

    def region(self) -> int:
        """Returns the number of the region of the call that is traced."""
        return self._regions[-1]


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


modules_in_graphs = ModulesInGraphs()


@constant_in_graph
def _number() -> int:
    return modules_in_graphs.region()


def _call_as_region(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Read by Dynamo in place of the call of a module that runs in another region."""
    _guard_on_kept(module)
    with as_autocast(_number()):
        return module(*args, **kwargs)


def _call_in_place(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Read by Dynamo in place of the call of a module that runs in the same region, while there are kept modules."""
    _guard_on_kept(module)
    return module(*args, **kwargs)


def _call_as_region_and_convert(module: Any, *args: Any, **kwargs: Any) -> Any:
    return _converted(_call_as_region, module, args, kwargs)


def _call_and_convert(module: Any, *args: Any, **kwargs: Any) -> Any:
    return _converted(_call_in_place, module, args, kwargs)


def _converted(call: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    stays = holds_dtype((args, kwargs), _lower())
    result = call(module, *args, **kwargs)
    return result if stays else InFloat32(_lower()).of(result)


@constant_in_graph
def _lower() -> Any:
    return modules_in_graphs.converted


def _guard_on_kept(module: Any) -> bool:
    """Makes compiled code depend on whether the module is kept: Dynamo guards on what it reads."""
    return getattr(module, ATTRIBUTE, None) is None
