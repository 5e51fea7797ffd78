"""The tensors that operations use, below autograd: those of Python, of C++, and of a backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from habana_mp.common.ledger import Assumption, holds
from habana_mp.patches.tools.pytree import tree_leaves

_DISPATCH_MODE = Assumption(
    "torch.dispatch-mode",
    assumed="a `torch.utils._python_dispatch.TorchDispatchMode` sees each operation with its schema",
    check="a mode sees an operation that writes",
    otherwise="hmp.diagnose does not put back what a step changes in modules that it does not call",
)


class _Uses(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's has no types
    def __init__(self, used: Callable[[torch.Tensor, bool], None], made: Callable[[torch.Tensor], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._used, self._made = used, made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for one in _tensors_in((args, kwargs)):
            self._used(one, func._schema.is_mutable)
        result = func(*args, **(kwargs or {}))
        for one in _tensors_in(result):
            self._made(one)
        return result


def _tensors_in(values: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


def seeing_uses(
    used: Callable[[torch.Tensor, bool], None], made: Callable[[torch.Tensor], None]
) -> AbstractContextManager[Any]:
    """A block in which ``used`` is called with each tensor before an operation of this thread uses it, and with True if
    the operation writes; and ``made`` with each result."""
    return _Uses(used, made) if holds(_DISPATCH_MODE, _sees) else nullcontext()


def _sees() -> bool:
    seen: list[bool] = []
    with _Uses(lambda _, writes: seen.append(writes), lambda _: None):
        torch.ones(1).add_(1)
    return seen == [True]
