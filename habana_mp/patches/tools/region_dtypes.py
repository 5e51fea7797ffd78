"""Shows torch.compile the regions, through autocast for a device type without a backend in any torch.

Dynamo guards on the autocast dtype of each type for which autocast is on, and can leave and enter ``torch.autocast``
around a graph break. So the dtype for this type shows the number of a thread's region. A function of ``hmp.op_wrap`` is
a region too, in which the lists of the surrounding region are suspended.
"""

from __future__ import annotations

from typing import Any

import torch

from habana_mp import _core
from habana_mp.common.ledger import Assumption, holds
from habana_mp.patches.tools.compiled_functions import constant_in_graph

_DEVICE_TYPES = Assumption(
    "torch.device-types",
    assumed="`torch._C._autograd.DeviceType` tells the number of a device type",
    check="it has that of the type by which torch.compile knows regions, a number of 0 or more",
    otherwise="the core sets autocast of that type by torch's functions of Python, which takes longer",
)


REGION_DEVICE = "maia"


def _number_of_region_device() -> int:
    types: Any = torch._C._autograd.DeviceType
    return int(getattr(types, REGION_DEVICE.upper()))


#: The number of this device type for torch's C++ functions; -1 if torch does not provide it.
REGION_DEVICE_NUMBER = (
    _number_of_region_device() if holds(_DEVICE_TYPES, lambda: _number_of_region_device() >= 0) else -1
)


def _dtypes() -> tuple[torch.dtype, ...]:
    """Returns all dtypes of torch, with torch's own default for the device type first: that stands for no region."""
    first = torch.get_autocast_dtype(REGION_DEVICE)
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return (first, *sorted(every - {first}, key=str))


#: The dtypes by the number of their regions.
REGION_DTYPES = _dtypes()


def as_autocast(number: int) -> torch.autocast:
    """Returns the region of torch.autocast that stands for the region with this number."""
    return torch.autocast(REGION_DEVICE, dtype=REGION_DTYPES[number], enabled=False)


@constant_in_graph
def lists_apply() -> bool:
    """True if casts are on in this thread and there are lists. For code that torch.compile may read."""
    return _core.lists_apply_here()


@constant_in_graph
def _number_of_suspension() -> int:
    return _core.number_of_suspension()


def lists_suspended() -> torch.autocast:
    """Returns a region of torch.autocast in which the lists that apply here are suspended. For code that Dynamo may
    read."""
    return as_autocast(_number_of_suspension())
