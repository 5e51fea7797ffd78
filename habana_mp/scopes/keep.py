"""``keep``: a module, and everything inside it, in one precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

import torch

from habana_mp.patches.torch.module_paths import unwrapped
from habana_mp.policy.kept import set_kept
from habana_mp.policy.precisions import PRECISIONS, dtype_meant

_M = TypeVar("_M", bound=torch.nn.Module)
_C = TypeVar("_C", bound=type[torch.nn.Module])

#: Stands for the class that a decorator with arguments is given afterwards.
_CLASS_FOLLOWS: Any = object()


@overload
def keep(module_or_modules: _C, precision: torch.dtype | str | None = ...) -> _C: ...
@overload
def keep(module_or_modules: _M, precision: torch.dtype | str | None = ...) -> _M: ...
@overload
def keep(module_or_modules: Iterable[_M], precision: torch.dtype | str | None = ...) -> Iterable[_M]: ...
@overload
def keep(*, precision: torch.dtype | str | None = ...) -> Callable[[_C], _C]: ...
def keep(module_or_modules: Any = _CLASS_FOLLOWS, precision: torch.dtype | str | None = torch.float32) -> Any:
    """Keeps a module, and everything inside it, in float32 or in another precision, whatever the lists say.

    ::

        hmp.keep(model.lm_head)                            # one module
        hmp.keep([model.embed, model.lm_head])             # several
        hmp.keep(model.lm_head, precision=None)            # no longer

        @hmp.keep                                          # all modules of a class
        class Router(nn.Module): ...

    It may be called before or after :func:`convert`, and is a property of the module: copies by ``copy.deepcopy`` and
    modules from ``pickle`` or ``torch.save`` have it too. It is no part of ``state_dict``. Each operation in the module
    that computes gets its inputs in that precision (rules 3 and 6 hold there as elsewhere). The innermost kept module
    decides. :func:`restore` forgets all.

    Args:
        module_or_modules: A module, several, or a class of modules. Without it the result is a decorator of a class.
        precision: torch.float32, torch.bfloat16 or torch.float16, or a name of it. None: keeps it no longer.

    Returns:
        ``module_or_modules``.

    Raises:
        TypeError: something that is no module.
        ValueError: an unknown precision.
    """
    name = None if precision is None else PRECISIONS.get(dtype_meant(precision))  # type: ignore[arg-type]  # or None
    if precision is not None and name is None:
        raise ValueError(
            f"`precision` must be torch.float32, torch.bfloat16 or torch.float16, a name of it, or None; "
            f"got {precision!r}"
        )
    if module_or_modules is _CLASS_FOLLOWS:
        return lambda kind: keep(kind, precision)
    for one in _checked(module_or_modules):
        set_kept(one, name)
    return module_or_modules


def _checked(given: Any) -> list[Any]:
    if isinstance(given, (torch.nn.ModuleList, torch.nn.ModuleDict)):
        # The forward of such a container never runs.
        return list(given.values() if isinstance(given, torch.nn.ModuleDict) else given)
    if _is_module(given):
        return [unwrapped(given)]  # a wrapper, as of torch.compile or DDP, may be thrown away
    try:
        several = [] if isinstance(given, (str, bytes)) else list(given)
    except TypeError:
        several = []
    wrong = next((one for one in several if not _is_module(one)), None) if several else given
    if wrong is not None or not several:
        raise TypeError(
            f"`hmp.keep` takes a module, modules, or a class of modules; got {type(wrong).__name__}: {wrong!r}"
        )
    return [part for one in several for part in _checked(one)]


def _is_module(given: object) -> bool:
    return isinstance(given, torch.nn.Module) or (isinstance(given, type) and issubclass(given, torch.nn.Module))
