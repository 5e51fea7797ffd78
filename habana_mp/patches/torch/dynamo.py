"""Changes to Dynamo, so that compiled code makes the same casts as other code.

If one of these changes is not possible, Dynamo compiles nothing while lists are in force: functions run as written.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, ClassVar

import torch

from habana_mp import _core
from habana_mp.common.ledger import Assumption, UnmetError, holds
from habana_mp.patches.tools.compiled_functions import leave_to_python, run_as_they_are
from habana_mp.patches.tools.when_imported import WhenImported

COMPILES_NOTHING = "torch.compile compiles nothing while lists are in force"

_SKIPPED = Assumption(
    "torch.dynamo-skipped-code",
    assumed="`skip_code` of `torch._dynamo.eval_frame` makes Dynamo leave a function's code to Python",
    check="it is there",
    otherwise=COMPILES_NOTHING,
)

_MARKED = Assumption(
    "torch.dynamo-marks",
    assumed="Dynamo finds by `_torchdynamo_disable` and `_dynamo_marked_constant` what it is not to read",
    check="it sets both itself, in `disable` and `assume_constant_result`",
    otherwise=COMPILES_NOTHING,
)

_GUARDS_ON_AUTOCAST = Assumption(
    "torch.dynamo-guards-on-autocast",
    assumed="Dynamo compiles again where autocast was switched on or off since",
    check="its guard on the global state fails after that",
    otherwise=COMPILES_NOTHING,
)

#: Operations that Dynamo decomposes.
_TAKEN_APART = ("addcmul_", "addcdiv_")

_HANDLERS = Assumption(
    "torch.dynamo-tensor-methods",
    assumed="`TensorVariable` has handlers of `addcmul_` and `addcdiv_`, which take them apart",
    check="its table `tp_methods` has them, or the class has methods named for them",
    otherwise="in compiled code such an operation may be taken apart, and its product go by the lists (rule 3)",
)


_GRAPHS = Assumption(
    "torch.dynamo-counters",
    assumed="`counters` of `torch._dynamo.utils` counts the graphs that were compiled, as `unique_graphs`",
    check="it is a mapping of mappings of numbers",
    otherwise="the report does not say that calls in compiled code are counted once",
)


def graphs_compiled() -> int:
    """Returns the number of graphs that Dynamo has compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None or not holds(_GRAPHS, lambda: isinstance(utils.counters["stats"]["unique_graphs"], int)):
        return 0
    count: int = utils.counters["stats"]["unique_graphs"]
    return count


class NothingCompiled(WhenImported):
    """Switches Dynamo off if one of the changes to it is not possible."""

    name = "torch._dynamo.config"
    _is_wanted = False

    def do(self, module: Any) -> None:
        if self._is_wanted and not module.disable:
            self.exchanged.exchange(module, "disable", True)

    def uninstall(self) -> None:
        super().uninstall()
        self._is_wanted = False

    def want(self) -> None:
        """Switches Dynamo off, now or once it is imported."""
        self._is_wanted = True
        for module in self._modules.values():
            self.do(module)


nothing_compiled = NothingCompiled()


def compile_nothing() -> None:
    """Makes torch.compile run functions as written while lists are in force."""
    nothing_compiled.want()


class OwnCode(WhenImported):
    """Functions of this package that change a thread's state: Dynamo runs them as they are, without reading them."""

    name = "torch._dynamo.eval_frame"
    functions: ClassVar[list[Any]] = []

    def do(self, module: Any) -> None:
        if not holds(_SKIPPED, lambda: callable(module.skip_code)):
            compile_nothing()
            return
        for function in (*self.functions, *run_as_they_are):
            leave_to_python(function)
            module.skip_code(function.__code__)


class MarksAndGuards(WhenImported):
    """Checks that Dynamo leaves marked functions alone, and that it guards on autocast."""

    name = "torch._dynamo"

    def __init__(self) -> None:
        super().__init__()
        self._guards = holds(_GUARDS_ON_AUTOCAST, _guard_follows_autocast)  # before autocast's functions are tapped

    def do(self, module: Any) -> None:
        graphs_compiled()  # so that the ledger has the result before a graph is compiled
        if not (self._guards and holds(_MARKED, lambda: _reads_marks(module))):
            compile_nothing()


def _reads_marks(dynamo: Any) -> bool:
    def marked() -> None: ...

    disabled, constant = dynamo.disable(lambda: None), dynamo.assume_constant_result(marked)
    return hasattr(disabled, "_torchdynamo_disable") and hasattr(constant, "_dynamo_marked_constant")


def _guard_follows_autocast() -> bool:
    guard: Any = torch._C._dynamo.guards.GlobalStateGuard()
    flag = _core.disabled_flag
    was_on = torch.is_autocast_enabled(flag)
    torch.set_autocast_enabled(flag, not was_on)
    follows = not guard.check()
    torch.set_autocast_enabled(flag, was_on)
    return follows


class WholeInPlaceOperations(WhenImported):
    """Makes ``x.addcmul_(y, z, value=2)`` stay a single in-place operation, which keeps its precision (rule 3).

    Dynamo decomposes it. One of the parts is a product, which the lists would apply to.
    """

    name = "torch._dynamo.variables.tensor"

    def do(self, module: Any) -> None:
        tensor: Any = module.TensorVariable
        taken_apart = [
            one for one in _TAKEN_APART if holds(_HANDLERS, functools.partial(_has_handler, tensor, one), one)
        ]

        def whole(original: Any) -> Any:
            def method(self: Any, *arguments: Any, value: Any = None) -> Any:
                # The arguments are two operands, after the tracer in newer releases. A tensor as `value` would have to
                # be read, which breaks the graph: torch's handler stays.
                return original(self, *arguments, value=value) if isinstance(value, tensor) else None

            return method

        for name in [f"method_{one}" for one in taken_apart if f"method_{one}" in vars(tensor)]:
            self.exchanged.exchange(tensor, name, whole(vars(tensor)[name]))
        # Since torch 2.15 a table holds the handlers.
        table = vars(tensor).get("tp_methods", {})
        ours = {one: type(table[one])(whole(table[one].handler)) for one in taken_apart if one in table}
        if ours:
            self.exchanged.exchange(tensor, "tp_methods", {**table, **ours})


def _has_handler(tensor: Any, name: str) -> bool:
    if name not in vars(tensor).get("tp_methods", {}) and f"method_{name}" not in vars(tensor):
        raise UnmetError(f"TensorVariable has none of {name}")
    return True
