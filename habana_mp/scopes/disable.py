"""``disable_casts``: a block of code, or a function, in which nothing is cast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar, overload

from habana_mp.patches.tools import casts_off
from habana_mp.patches.tools.notes import no_notes
from habana_mp.scopes.scope import Scope

_F = TypeVar("_F", bound=Callable[..., Any])


class CastsOff(casts_off.CastsOff, Scope):
    """The result of a call of :data:`disable_casts`."""

    _name = "disable_casts"
    _advice = (
        "hmp.disable_casts() alone does nothing: write `with hmp.disable_casts():` around a block, or `hmp.restore()` "
        "for the whole script"
    )

    #: The number of blocks that have begun, without those of a diagnosis.
    begun = 0

    def __enter__(self) -> None:
        self._is_used = True
        CastsOff.begun += not no_notes.entrances
        super().__enter__()

    def _again(self) -> AbstractContextManager[Any]:
        return disable_casts()


class DisableCasts(CastsOff):
    """Casts off in this thread: ``with hmp.disable_casts():`` around a block, ``@hmp.disable_casts()`` on a function.

    ::

        with hmp.disable_casts():
            optimizer.step()

    The parentheses are optional, except for a block in code that torch.compile compiles as one graph
    (``fullgraph=True``). It can be nested and reused, an exception restores the state, and other threads are not
    affected. Tensors that are already in lower precision stay so: NumPy, which has no bfloat16, reads one by
    ``x.float().numpy()``.
    """

    __name__ = "disable_casts"
    _is_used = True  # it lives as long as the process

    @overload
    def __call__(self) -> CastsOff: ...
    @overload
    def __call__(self, function: _F) -> _F: ...
    def __call__(self, function: Any = None) -> Any:
        if function is not None:
            return CastsOff()(function)
        return casts_off.casts_off(CastsOff)

    def __repr__(self) -> str:
        return "<hmp.disable_casts>"

    def __reduce__(self) -> str:
        return "disable_casts"  # the instance in this module


disable_casts = DisableCasts()
