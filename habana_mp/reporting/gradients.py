"""Gradients that are not finite: which operation's backward made them, and samples of those that an optimizer gets."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from habana_mp import _core
from habana_mp.patches.tools.compiled_functions import run_by_python
from habana_mp.reporting.judging import Call, Worst, node_of, tensors_in, worst_of
from habana_mp.reporting.origins import Origin, here

#: An operation has few nodes in autograd's graph.
_MOST_NODES = 24
#: So many gradients are read before a step of an optimizer. One that is not finite spreads to most others.
_MOST_GRADIENTS = 32

_FOLLOWED = "habana_mp.guard"

_random = random.Random(0)


def follow(call: Call, made: Callable[[str, Origin, Worst], None]) -> None:
    """Calls ``made`` with the operation and its origin if the backward of a call makes a value that is not finite of
    finite gradients."""
    origin: Origin | None = None
    for node in _nodes_of(call):
        origin = origin or here()
        node.metadata[_FOLLOWED] = True
        node.register_hook(partial(_look, partial(made, call.operation, origin)))


@run_by_python
def _look(made: Callable[[Worst], None], gradients: Any, given: Any) -> None:
    worst = _core.call_unseen(lambda: worst_of(tensors_in(gradients)))
    if worst is not Worst.NUMBERS and _core.call_unseen(lambda: worst_of(tensors_in(given))) is Worst.NUMBERS:
        made(worst)


def _nodes_of(call: Call) -> list[Any]:
    """Returns the new nodes between the results of a call and its arguments."""
    # The node of an argument that was overwritten is gone.
    ends, most = ({node_of(one) for one in call.inputs()}, _MOST_NODES) if call.before is None else (set(), 1)
    waiting: list[Any] = [node_of(one) for one in call.results()]
    found: list[Any] = []
    while waiting and len(found) < most:
        node = waiting.pop()
        if node is None or node in ends or node in found or hasattr(node, "variable"):  # the last: a weight's
            continue
        if _FOLLOWED not in node.metadata:
            found.append(node)
            waiting += [one for one, _ in node.next_functions]
    return found


def bad_gradient(optimizer: Any) -> torch.Tensor | None:
    """Returns a weight whose gradient is not finite, of a sample of those that an optimizer steps."""
    weights = [one for group in getattr(optimizer, "param_groups", ()) for one in group["params"]]
    sample = _random.sample(weights, min(len(weights), _MOST_GRADIENTS))
    place = _core.worst_gradient(sample)
    return sample[place] if place >= 0 else None
