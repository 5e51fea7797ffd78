"""A block in which nothing is cast, for the patches and for ``hmp.disable_casts``, and functions that run in one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from habana_mp import _core
from habana_mp.patches.tools.region_dtypes import lists_apply


class CastsOff:
    """Casts are off in this thread from entering to leaving. It may be nested and entered again."""

    #: The name of a function that runs without casts; None in a block of the user's.
    inside: str | None = None

    def __enter__(self) -> None:
        _core.enter_region(self, 0, self.inside)

    def __exit__(self, *_: object) -> None:
        _core.leave_region(self)


def casts_off(
    block: type[CastsOff] = CastsOff, function: Callable[..., Any] | None = None
) -> AbstractContextManager[Any]:
    """Returns a block of this class, or one of torch's own while torch.compile reads the code. The report names the
    ``function`` that runs in the block.

    Dynamo knows how to leave a block of ``torch.autocast`` and enter it again around a graph break, autograd's threads
    inherit its flag, and compiled code is guarded on it.
    """
    if torch.compiler.is_compiling():
        return torch.autocast(_core.disabled_flag, dtype=torch.bfloat16)
    made = block()
    if function is not None:
        made.inside = f"{function.__module__.partition('.')[0]}'s {function.__qualname__}".removeprefix("__main__'s ")
    return made


def without_casts(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that creates state or prepares data (rule 11)."""
    if not lists_apply():  # functions that prepare data call one another
        return original(*arguments, **keywords)
    with casts_off(function=original):
        return original(*arguments, **keywords)
