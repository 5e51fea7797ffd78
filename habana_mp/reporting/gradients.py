"""Gradients that are not finite: which operation's backward made them, and samples of those that an optimizer gets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from habana_mp import _core
from habana_mp.patches.tools.compiled_functions import run_by_python
from habana_mp.reporting.judging import Call, Worst, node_of, tensors_in, worst_of
from habana_mp.reporting.origins import Origin, here

#: An operation has few nodes in autograd's graph.
_MOST_NODES = 24
#: So many gradients are read before a step of an optimizer. One that is not finite spreads to most others.
_MOST_GRADIENTS = 32


_FOLLOWED = "habana_mp.guard"


class GradientHooks:
    """Finds the operations whose backward makes a value that is not finite of finite gradients."""

    def __init__(self, made: Callable[[str, Worst, Origin], None]) -> None:
        self._made = made

    def follow(self, call: Call) -> None:
        """Watches the backward of a call."""
        origin: Origin | None = None
        for node in _nodes_of(call):
            origin = origin or here()
            node.metadata[_FOLLOWED] = True
            node.register_hook(partial(self._look, call.operation, origin))

    @run_by_python
    def _look(self, operation: str, origin: Origin, made: Any, given: Any) -> None:
        _core.call_unseen(lambda: self._compare(operation, origin, made, given))

    def _compare(self, operation: str, origin: Origin, made: Any, given: Any) -> None:
        worst = worst_of(tensors_in(made))
        if worst is not Worst.NUMBERS and worst_of(tensors_in(given)) is Worst.NUMBERS:
            self._made(operation, worst, origin)


def _nodes_of(call: Call) -> list[Any]:
    """Returns the new nodes between the results of a call and its arguments."""
    # The node of an argument that was overwritten is gone.
    ends, most = ({node_of(one) for one in call.inputs()}, _MOST_NODES) if call.before is None else (set(), 1)
    waiting: list[Any] = [node_of(one) for one in tensors_in(call.result)]
    found: list[Any] = []
    while waiting and len(found) < most:
        node = waiting.pop()
        if node is None or node in ends or node in found or hasattr(node, "variable"):  # the last: a weight's
            continue
        if _FOLLOWED not in node.metadata:
            found.append(node)
            waiting += [one for one, _ in node.next_functions]
    return found


class SampledGradients:
    """Reads samples of the gradients before each step of an optimizer."""

    def __init__(self, seen: Callable[[torch.Tensor], None]) -> None:
        self._seen = seen
        self._hook: Any = None
        self._next = 0

    def begin(self) -> None:
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self._look)

    def end(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    @run_by_python
    def _look(self, optimizer: Any, *_: Any) -> None:
        weights = [one for group in optimizer.param_groups for one in group["params"]]
        if len(weights) > _MOST_GRADIENTS:
            begin = self._next % len(weights)
            self._next += _MOST_GRADIENTS
            weights = (weights[begin:] + weights[:begin])[:_MOST_GRADIENTS]
        place = _core.worst_gradient(weights)
        if place >= 0:
            self._seen(weights[place])
