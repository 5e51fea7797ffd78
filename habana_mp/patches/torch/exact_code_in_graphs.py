"""Exact code that torch.compile reads: its own operations become regions in which nothing is lowered.

The frames of a user's code are not on the stack while Dynamo reads it. So this patch tells the core when Dynamo runs an
operation of exact code to learn its result. If a list would have lowered the operation, the graph gets a region around
it (``region_dtypes.py``), in which the lists lower nothing. Lists apply to the functions that exact code calls.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from habana_mp import _core
from habana_mp.common.errors import warn
from habana_mp.common.ledger import UnmetError
from habana_mp.patches.tools.region_dtypes import REGION_DEVICE, REGION_DTYPES
from habana_mp.patches.tools.when_imported import WhenImported
from habana_mp.patches.torch.dynamo import can_change, compile_nothing


class ExactCodeInGraphs(WhenImported):
    """Puts operations of exact code into regions, while there is such code."""

    name = "torch._dynamo.symbolic_convert"
    _is_wanted = False

    def follow(self, is_wanted: bool) -> None:
        """Called whenever exact code is set, or none is left."""
        self._is_wanted = is_wanted
        for module in self._modules.values():
            self.do(module)

    def do(self, module: Any) -> None:
        self.exchanged.put_back()
        if self._is_wanted and can_change("results", lambda: _is_as_expected(module)):
            self.exchanged.replace(sys.modules[_UTILS].get_fake_value, _get_fake_value)


exact_code_in_graphs = ExactCodeInGraphs()

_UTILS = "torch._dynamo.utils"


def _is_as_expected(module: Any) -> bool:
    function = sys.modules[_UTILS].get_fake_value
    if not isinstance(function, types.FunctionType) or function.__code__.co_varnames[:2] != ("node", "tx"):
        raise UnmetError(f"it is {function!r}")
    translators = (module.InstructionTranslatorBase, module.InliningInstructionTranslator)
    names = {name for one in translators for name in one.__init__.__code__.co_names}
    return names.issuperset(("f_code", "parent", "output"))


def _get_fake_value(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    node, tx = arguments[:2]
    if not _is_operation(node) or not _is_of_exact_code(tx):
        return original(*arguments, **keywords)
    before = _core.exact_code_is_traced()
    try:
        value = original(*arguments, **keywords)
    finally:
        would_be_lowered = _core.exact_code_was_traced(before)
    if would_be_lowered:
        _put_in_region(node, tx)
    return value


def _is_operation(node: Any) -> bool:
    """True for a call of torch. The body of a higher-order operator has nodes of its own."""
    return node.op in ("call_function", "call_method") and not isinstance(node.target, torch._ops.HigherOrderOperator)


def _is_of_exact_code(tx: Any) -> bool:
    while tx is not None:
        is_exact = _core.is_exact(tx.f_code)
        if is_exact is not None:
            return is_exact
        tx = getattr(tx, "parent", None)  # torch computes for its caller
    return False


def _put_in_region(node: Any, tx: Any) -> None:
    number, is_shown = _core.exact_rules()
    if not is_shown:
        warn("exact code runs under more lists than torch.compile can tell apart: it compiles nothing meanwhile")
        compile_nothing()
        return
    enter, leave = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast
    with node.graph.inserting_before(node):
        region = (REGION_DEVICE, REGION_DTYPES[number], False, None)
        entered = tx.output.create_node("call_function", enter, region, {})
    with node.graph.inserting_after(node):
        tx.output.create_node("call_function", leave, (entered,), {})


class ResumedExactCode(WhenImported):
    """Makes the rest of an exact function exact too, which Dynamo makes a function of its own after a graph break."""

    name = "torch._dynamo.resume_execution"

    def do(self, module: Any) -> None:
        cache = module.ContinueExecutionCache
        if can_change("resumed", lambda: vars(cache)["lookup"].__func__.__code__.co_varnames[:2] == ("cls", "code")):
            self.exchanged.replace(vars(cache)["lookup"].__func__, _look_up)


def _look_up(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    made = original(*arguments, **keywords)
    _core.pass_on_exactness(arguments[1], made)
    return made
