"""How torch.compile knows of regions: by autocast for a device type that no torch has a backend for.

Dynamo guards on the autocast dtype of each type for which autocast is on, and knows how to leave and enter
``torch.autocast`` around a graph break. So the dtype for this type tells the number of a thread's region; a function of
``hmp.op_wrap`` is one as well, in which the lists of the region around it are silent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from habana_mp import _core

_F = TypeVar("_F", bound=Callable[..., Any])


def _mark() -> str:
    for device in ("maia", "mtia", "xla"):
        try:
            torch.get_autocast_dtype(device)
        except RuntimeError:
            continue  # older releases do not name it
        return device
    raise RuntimeError("habana_mp: this torch names no device type for its regions; please report it")


MARK = _mark()
#: The same for torch's C++ functions; -1 where torch does not tell.
MARK_NUMBER = int(getattr(torch._C._autograd.DeviceType, MARK.upper(), -1))


def _dtypes() -> tuple[torch.dtype, ...]:
    """All that torch has, its own choice for the type first: that stands for no region."""
    first = torch.get_autocast_dtype(MARK)
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return (first, *sorted(every - {first}, key=str))


#: By a region's number.
MARK_DTYPES = _dtypes()


def as_autocast(number: int) -> torch.autocast:
    """The region of this number as a region of torch's that means it."""
    return torch.autocast(MARK, dtype=MARK_DTYPES[number], enabled=False)


def constant_in_graph(function: _F) -> _F:
    """torch.compile calls this function when it compiles, and takes what it returns for a constant."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # Dynamo looks for it
    return function


@constant_in_graph
def lists_speak() -> bool:
    """Are casts on in this thread, and are there lists? For code that torch.compile may read."""
    return _core.lists_speak_here()


@constant_in_graph
def _number_of_silence() -> int:
    return _core.number_of_silence()


def silence() -> torch.autocast:
    """The region in which the lists that speak here are silent, as one of torch's. For code that Dynamo may read."""
    return as_autocast(_number_of_silence())
