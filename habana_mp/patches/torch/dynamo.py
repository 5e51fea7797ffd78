"""Changes to Dynamo, so that compiled code makes the same casts as other code.

If one of these changes is not possible, Dynamo compiles nothing while lists are in force: functions run as written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from habana_mp import _core
from habana_mp.common.ledger import Assumption, holds
from habana_mp.patches.tools.compiled_functions import leave_to_python, run_as_they_are
from habana_mp.patches.tools.when_imported import WhenImported

_COMPILES = Assumption(
    "torch.compile",
    assumed="Dynamo does not read what `skip_code`, `_torchdynamo_disable` or `_dynamo_marked_constant` marks; it "
    "compiles again where autocast was switched since, counts its graphs, has handlers of `addcmul_` and `addcdiv_`, "
    "runs each operation of a graph by `get_fake_value`, with its node and the translator of the code, makes the code "
    "after a graph break in `ContinueExecutionCache.lookup`, traces a module's call by `call_function` of "
    "NNModuleVariable and UnspecializedNNModuleVariable, and has a set `_allowed_callable_ids` of functions whose "
    "calls it notes; AOTAutograd runs compiled code by "
    "`call_func_at_runtime_with_args` and `RuntimeWrapper.post_compile`, and needs no cache",
    check="each is there, with the parameters that ours hand on, and Dynamo's guard fails after autocast was switched",
    otherwise="torch.compile compiles nothing while lists are in force",
)

#: Operations that Dynamo decomposes.
_TAKEN_APART = ("addcmul_", "addcdiv_")


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
        """Makes torch.compile run functions as written while lists are in force: now, or once it is imported."""
        self._is_wanted = True
        for module in self._modules.values():
            self.do(module)


nothing_compiled = NothingCompiled()


compile_nothing = nothing_compiled.want


def can_change(part: str, test: Callable[[], object]) -> bool:
    """True if this part of torch.compile is as it is expected. Otherwise nothing is compiled."""
    is_expected = holds(_COMPILES, test, part)
    if not is_expected:
        compile_nothing()
    return is_expected


class OwnCode(WhenImported):
    """Functions of this package that change a thread's state: Dynamo runs them as they are, without reading them.
    Checks that it does so, and that it guards on autocast."""

    name = "torch._dynamo"
    functions: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        self._guards = holds(_COMPILES, _guard_follows_autocast, "guard")  # before autocast's functions are tapped

    def do(self, module: Any) -> None:
        tests = {"guard": lambda: self._guards, "marks": lambda: _reads_marks(module), "counters": _counts_graphs}
        if all(can_change(part, test) for part, test in tests.items()):
            for function in (*self.functions, *run_as_they_are):
                leave_to_python(function)
                module.eval_frame.skip_code(function.__code__)


def _reads_marks(dynamo: Any) -> bool:
    def marked() -> None: ...

    disabled, constant = dynamo.disable(lambda: None), dynamo.assume_constant_result(marked)
    reads = hasattr(disabled, "_torchdynamo_disable") and hasattr(constant, "_dynamo_marked_constant")
    return reads and callable(dynamo.eval_frame.skip_code)


def _counts_graphs() -> bool:
    return isinstance(sys.modules["torch._dynamo.utils"].counters["stats"]["unique_graphs"], int)


def graphs_compiled() -> int:
    """Returns the number of graphs that Dynamo has compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None or not holds(_COMPILES, _counts_graphs, "counters"):
        return 0
    return int(utils.counters["stats"]["unique_graphs"])


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
        table = vars(tensor).get("tp_methods", {})  # since torch 2.15; before, there are methods named for them
        methods = [f"method_{one}" for one in _TAKEN_APART if one not in table]
        if not can_change("handlers", lambda: all(one in vars(tensor) for one in methods)):
            return

        def whole(original: Any) -> Any:
            def method(self: Any, *arguments: Any, value: Any = None) -> Any:
                # The arguments are two operands, after the tracer in newer releases. A tensor as `value` would have to
                # be read, which breaks the graph: torch's handler stays.
                return original(self, *arguments, value=value) if isinstance(value, tensor) else None

            return method

        ours = {one: type(table[one])(whole(table[one].handler)) for one in _TAKEN_APART if one in table}
        if ours:
            self.exchanged.exchange(tensor, "tp_methods", {**table, **ours})
        for name in methods:
            self.exchanged.exchange(tensor, name, whole(vars(tensor)[name]))
