"""A block in which nothing is cast, for the patches and for ``hmp.disable_casts``, and functions that run in one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from habana_mp import _core
from habana_mp.patches.tools.region_dtypes import lists_apply


class CastsOff:
    """Casts are off in this thread from entering to leaving. It may be nested and entered again."""

    def __enter__(self) -> None:
        _core.enter_region(self, 0)

    def __exit__(self, *_: object) -> None:
        _core.leave_region(self)


def casts_off(block: type[CastsOff] = CastsOff) -> AbstractContextManager[Any]:
    """Returns a block of this class, or one of torch's own while torch.compile reads the code.

    Dynamo knows how to leave a block of ``torch.autocast`` and enter it again around a graph break, autograd's threads
    inherit its flag, and compiled code is guarded on it.
    """
    if torch.compiler.is_compiling():
        return torch.autocast(_core.disabled_flag, dtype=torch.bfloat16)
    return block()


def without_casts(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that creates state or prepares data (rule 11)."""
    if not lists_apply():  # functions that prepare data call one another
        return original(*arguments, **keywords)
    with casts_off():
        return original(*arguments, **keywords)
