"""Modes of torch's dispatcher, which see each operation below autograd: those of Python, of C++, and of a backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import _python_dispatch

from habana_mp.common.ledger import Assumption, holds, require
from habana_mp.patches.tools.pytree import tree_leaves

_MODES = Assumption(
    "torch.dispatch-modes",
    assumed="a TorchDispatchMode sees each operation with its schema, which says what is written to and what is a view",
    check="of addition in place it is asked",
    otherwise="CPU fallback logs and HPUGraph are refused by the stand-in for Gaudi, and hmp.diagnose does not put "
    "back what a step changes in modules that it does not call",
)

#: The module has no type annotations.
Mode: Any = _python_dispatch.TorchDispatchMode


def require_modes() -> None:
    """Raises an error if the modes are not as they are expected."""
    require(_MODES, _are_as_expected)


def _are_as_expected() -> bool:
    return bool(list(written_by(torch.ops.aten.add_.Tensor, (torch.ones(1), torch.ones(1)), {})))


def written_by(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Yields the tensors that a call writes to."""
    for place, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors_in(args[place] if place < len(args) else kwargs.get(argument.name))


def _tensors_in(values: Any) -> Iterator[Tensor]:
    return (one for one in tree_leaves(values) if isinstance(one, Tensor))


class _Uses(Mode):  # type: ignore[misc]  # see `Mode`
    def __init__(
        self, used: Callable[[Tensor], None], written: Callable[[Tensor], None], made: Callable[[Tensor], None]
    ) -> None:
        super().__init__()
        self._used, self._written, self._made = used, written, made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for one in _tensors_in((args, kwargs)):
            self._used(one)
        for one in written_by(func, args, kwargs):
            self._written(one)
        result = func(*args, **kwargs)
        for one in _tensors_in(result):
            self._made(one)
        return result


def seeing_uses(
    used: Callable[[Tensor], None], written: Callable[[Tensor], None], made: Callable[[Tensor], None]
) -> AbstractContextManager[Any]:
    """A block in which these are called with each tensor that an operation of this thread is about to use, is about to
    write to, and has returned."""
    return _Uses(used, written, made) if holds(_MODES, _are_as_expected) else nullcontext()
