"""``convert(within=...)``: the lists apply only while the forward of a module runs. ``convert(results="fp32")``: what
leaves a model is in float32.

The core taps the calls of modules, and converts a tensor that the outermost one returns (src/engine/modules.hpp); it
calls a function for any other result. It sees no calls in code that torch.compile reads: there a module's call becomes
a region with a number from the core (``region_dtypes.py``), and the graph has the conversion.
"""

from __future__ import annotations

import types
import weakref
from typing import Any, NamedTuple

import torch

from habana_mp import _core
from habana_mp.common.ledger import UnmetError
from habana_mp.patches.tools import tapped_calls
from habana_mp.patches.tools.compiled_functions import constant_in_graph, run_by_python
from habana_mp.patches.tools.in_containers import InFloat32, holds_dtype
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.patches.tools.region_dtypes import as_autocast
from habana_mp.patches.tools.when_imported import WhenImported
from habana_mp.patches.torch.dynamo import can_change
from habana_mp.policy.kept import ATTRIBUTE, are_there_kept


class ModuleCalls(Patch):
    """Taps the calls of modules."""

    def __init__(self) -> None:
        #: The modules that `within` names; None if it names none.
        self._named: list[weakref.ref[torch.nn.Module]] | None = None

    def check(self, settings: Settings) -> None:
        if not settings.options.lowers_everywhere:
            tapped_calls.require_tap()

    def install(self, settings: Settings) -> None:
        if settings.options.lowers_everywhere:
            self.uninstall()
            return
        modules = settings.options.modules
        self._named = None if modules is None else [weakref.ref(one, self._wait) for one in modules]
        tapped_calls.begin("within")
        self._wait()
        modules_in_graphs.begin("within")

    def _wait(self, _: object = None) -> None:
        """Passes the core the named modules that live: another object may get the address of one that was destroyed."""
        named = self._named
        _core.wait_for_modules(None if named is None else [one for ref in named if (one := ref()) is not None])

    def uninstall(self) -> None:
        self._named = None
        modules_in_graphs.end("within")
        _core.stop_waiting_for_modules()
        tapped_calls.end("within")


class ModelResults(Patch):
    """Converts what leaves a model."""

    def check(self, settings: Settings) -> None:
        if settings.options.results_in_float32:
            tapped_calls.require_tap()

    def install(self, settings: Settings) -> None:
        if not settings.options.results_in_float32:
            self.uninstall()
            return
        dtype = settings.options.lower_dtype

        @run_by_python
        def convert(result: Any) -> Any:
            made = InFloat32(dtype)
            converted = made.of(result)
            for before, after in made.tensors:
                _core.count_model_result(before, after)
            return converted

        @run_by_python
        def is_lower(value: Any) -> bool:
            return holds_dtype(value, dtype)

        tapped_calls.begin("results")
        _core.convert_model_results(dtype, is_lower, convert)
        modules_in_graphs.converted = dtype
        modules_in_graphs.begin("results")

    def uninstall(self) -> None:
        modules_in_graphs.end("results")
        _core.stop_converting_model_results()
        tapped_calls.end("results")


class _Form(NamedTuple):
    """Says how a graph makes the call of a module."""

    #: The number of the region in which the call runs, or -1 if it runs in the same one.
    region: int
    #: The precision of which the results become float32, or None.
    lower: torch.dtype | None


class ModulesInGraphs(WhenImported):
    """Turns the module calls that Dynamo traces into regions."""

    name = "torch._dynamo.variables.nn_module"

    def __init__(self) -> None:
        super().__init__()
        self._users: set[str] = set()
        #: The modules whose calls are traced, from the outermost on, and how the graph makes each of these calls.
        self._being_called: list[tuple[torch.nn.Module, Any] | None] = []
        self._forms: list[_Form] = []
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
                form = _Form(traced.region, self.converted if traced.is_outermost else None)
                if form.lower is not None and any(one.dtype is form.lower for one in called.parameters()):
                    form = form._replace(lower=None)
                if form == (-1, None) and not are_there_kept():
                    return traced.judged(original(*arguments, **keywords))
                from torch._dynamo.variables import UserFunctionVariable  # which itself imports this module

                self._being_called.append((called, tx.output))
                self._forms.append(form)
                try:
                    function: Any = _call
                    return traced.judged(UserFunctionVariable(function).call_function(tx, [variable, *args], kwargs))
                finally:
                    self._being_called.pop()
                    self._forms.pop()
            finally:
                traced.leave()

        if can_change("module calls", lambda: all(map(_is_as_expected, _callers(module)))):
            for one in _callers(module):
                self.exchanged.replace(one, call)

    def form(self) -> _Form:
        """Returns the form of the call that is traced."""
        return self._forms[-1]


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
    return modules_in_graphs.form().region


@constant_in_graph
def _lower() -> Any:
    return modules_in_graphs.form().lower


def _call(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Read by Dynamo in place of the call of a module."""
    _guard_on_kept(module)
    number, lower = _number(), _lower()
    stays = lower is None or holds_dtype((args, kwargs), lower)
    if number < 0:
        result = module(*args, **kwargs)
    else:
        with as_autocast(number):
            result = module(*args, **kwargs)
    return result if stays else InFloat32(lower).of(result)


def _guard_on_kept(module: Any) -> bool:
    """Makes compiled code depend on whether the module is kept: Dynamo guards on what it reads."""
    return getattr(module, ATTRIBUTE, None) is None
