"""``torch.autocast``, ``torch.amp.GradScaler``, ``torch.amp.custom_fwd`` and ``custom_bwd`` for ``"hpu"``."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from habana_mp.common.ledger import Assumption, holds
from habana_mp.gaudi.devices import Devices
from habana_mp.gaudi.patches.changes import Changes
from habana_mp.scopes import regions

_AUTOCAST = Assumption(
    "torch.autocast-class",
    assumed="torch.autocast is a class of Python's that takes `device_type`, `dtype`, `enabled` and `cache_enabled`, "
    "and torch.amp.GradScaler one that takes `device`",
    check="their constructors' parameters",
    otherwise='torch.autocast("hpu") casts nothing',
)

#: The attribute in which a torch.autocast for the stand-in's device holds its region.
_REGION = "_habana_mp_region"


def change_autocast(hpu: Devices, changes: Changes) -> None:
    """Makes torch.autocast on the stand-in's device a region of ``hmp.autocast`` on the real one, with HPU's lists."""

    def begin(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        itself, device_type, dtype, enabled, cache_enabled = (*arguments, *keywords.values())
        device_type = device_type.type if isinstance(device_type, torch.device) else device_type
        if not hpu.means(device_type):
            original(itself, device_type, dtype, enabled, cache_enabled)
            return
        real = hpu.real_of(device_type, "torch.autocast").type
        if device_type == "cuda" and dtype is torch.float16:  # also the default of torch.cuda.amp.autocast
            dtype = torch.bfloat16
        # torch.cuda.amp.autocast passes True, which is the default.
        region = regions.autocast(real, dtype, enabled, None if cache_enabled is True else cache_enabled, preset="hpu")
        original(itself, real, torch.bfloat16 if dtype is None else dtype, enabled, cache_enabled)
        setattr(itself, _REGION, region)

    def decorate(arguments: dict[str, Any]) -> None:
        given = arguments.get("device_type")
        if isinstance(given, str) and hpu.means(given):
            arguments["device_type"] = hpu.real_of(given, "torch.amp.custom_fwd").type

    def scale(arguments: dict[str, Any]) -> None:
        given = arguments.get("device", "cuda")  # torch's default
        if hpu.means(given):
            arguments["device"] = hpu.real_of(given, "torch.amp.GradScaler").type
            if given == "cuda":
                arguments["enabled"] = False  # bfloat16 needs no scaling

    if not holds(_AUTOCAST, _is_as_expected):
        return
    autocast: Any = torch.autocast
    scaler: Any = torch.amp.GradScaler
    changes.replace(autocast.__init__, begin)
    changes.replace(autocast.__enter__, _enter)
    changes.replace(autocast.__exit__, _exit)
    changes.edit(scaler.__init__, scale)
    for decorator in (torch.amp.custom_fwd, torch.amp.custom_bwd):
        changes.edit(decorator, decorate)


def _enter(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    region = getattr(arguments[0], _REGION, None)
    if region is None:
        return original(*arguments, **keywords)
    region.__enter__()
    return arguments[0]


def _exit(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    region = getattr(arguments[0], _REGION, None)
    return original(*arguments, **keywords) if region is None else region.__exit__(*arguments[1:])


def _is_as_expected() -> bool:
    autocast: Any = torch.autocast
    scaler: Any = torch.amp.GradScaler
    expected = ["self", "device_type", "dtype", "enabled", "cache_enabled"]
    return (
        list(inspect.signature(autocast.__init__).parameters) == expected
        and "device" in inspect.signature(scaler.__init__).parameters
    )
