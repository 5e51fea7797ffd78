"""Blocks that run later or in other threads: they make the same casts as where they were passed on.

``torch.utils.checkpoint`` runs a block again in the backward, and ``nn.DataParallel`` runs each replica in its own
thread, under ``torch.autocast`` as it was in the forward or the caller. If autocast was off, it is entered as
``enabled=False``, which rule 10 would take for a request of the model. So the block carries the state along.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.checkpoint

from habana_mp import _core
from habana_mp.common.ledger import Assumption
from habana_mp.patches.tools.named_functions import Exchange


class AsWhenGiven:
    """A block that runs later or in another thread, with the state in which it was passed on: if casts were on, what
    turned them off, and which lists applied. It also holds the module that ran.

    A reentrant checkpoint runs it first without autograd and then with it. Products are computed in the same way in
    both runs, since a router must choose the same experts."""

    def __init__(self, block: Any) -> None:
        self._block = block
        self._state = _core.current_state()
        self._module = _core.running_module()
        self._is_tracked = torch.is_grad_enabled()
        self._in_model = _core.in_model()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = _core.exchange_state(self._state)
        block = None if self._module is None else _core.enter_block(self._module)
        again = _core.exchange_runs_again(self._is_tracked and not torch.is_grad_enabled())
        in_model = _core.exchange_in_model(self._in_model)
        try:
            return self._block(*args, **kwargs)
        finally:
            if block is not None:
                block.leave()
            _core.exchange_in_model(in_model)
            _core.exchange_runs_again(again)
            _core.exchange_state(before)


def running_as_given(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that runs a block, and again in the backward."""
    if arguments and callable(arguments[0]):
        arguments = (AsWhenGiven(arguments[0]), *arguments[1:])
    elif callable(keywords.get("function")):
        keywords = {**keywords, "function": AsWhenGiven(keywords["function"])}
    return original(*arguments, **keywords)


def replicas_as_given(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that runs each module of a sequence in a thread."""
    return original([AsWhenGiven(one) for one in arguments[0]], *arguments[1:], **keywords)


_BLOCKS = Assumption(
    "torch.blocks-that-run-later",
    assumed="`torch.utils.checkpoint._checkpoint_impl`, or else `checkpoint`, is given each block that runs again, and "
    "`torch.nn.parallel.parallel_apply` nn.DataParallel's replicas, each of which it runs in a thread",
    check="both are functions of Python that take arguments by their position",
    otherwise="such a block runs without casts: in a checkpoint its gradients are those of float32, or torch raises "
    "because what it recomputed has another precision",
)

#: Since torch 2.15 `checkpoint` is also a decorator; there both forms call this function.
_BOTH_FORMS = "_checkpoint_impl"
_RUNS_AGAIN = _BOTH_FORMS if hasattr(torch.utils.checkpoint, _BOTH_FORMS) else "checkpoint"

EXCHANGES = (
    Exchange(running_as_given, {"torch.utils.checkpoint": (_RUNS_AGAIN,)}, _BLOCKS, positional=1),
    Exchange(replicas_as_given, {"torch.nn.parallel.parallel_apply": ("parallel_apply",)}, _BLOCKS, positional=1),
)
