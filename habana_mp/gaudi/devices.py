"""The device that ``"hpu"`` means here."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import torch

from habana_mp.common import devices
from habana_mp.gaudi.callers import line_of_caller

logger = logging.getLogger("habana_mp.gaudi")

#: The names that stand for the best available device.
BEST = ("", "1", "auto")


class _ToStandardError(logging.Handler):
    """Writes to the current ``sys.stderr``."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


def chosen(name: str | None) -> torch.device:
    """Returns the device for the value of ``--gaudi=`` or of the environment variable, or for None.

    Raises:
        ValueError: not a device, or one that is not available here.
    """
    available = _available_types()
    if name is None or name in BEST:
        return torch.device(available[0])
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"`device` must be a device of torch, such as {' or '.join(available)}; got {name!r}"
        ) from error
    if device.type not in available:
        raise ValueError(f"`device` must be one that is here: {', '.join(available)}; got {name!r}")
    count = 1 if device.type == "cpu" else int(getattr(torch, device.type).device_count())
    if (device.index or 0) >= count:
        raise ValueError(f"`device` must be one of {count} here, numbered from 0; got {name!r}")
    return torch.device("cpu") if device.type == "cpu" else device


def _available_types() -> list[str]:
    """Returns the available device types, the best first."""
    return [*(one for one in devices.devices() if one not in ("cpu", "hpu")), "cpu"]


#: The device that a script sees if there is only one.
_FIRST = torch.device("hpu", 0)


class Devices:
    """The device that ``"hpu"`` leads to, and the log of its uses."""

    def __init__(self, real: torch.device) -> None:
        self.real = real
        #: The device types that lead there.
        self.names = {"hpu"}
        #: The backends of torch.distributed that lead to the device's own.
        self.backends = {"hccl"}
        self._logged: set[tuple[str, int, str]] = set()

    @property
    def module(self) -> Any:
        """torch.cpu, torch.cuda, ..."""
        return getattr(torch, self.real.type)

    def call_of_module(self, name: str, otherwise: Callable[[], Any], *arguments: Any) -> Any:
        """Calls this function of torch.cuda, torch.xpu, ..., or ``otherwise`` for a CPU or a module without it."""
        function = None if self.real.type == "cpu" else getattr(self.module, name, None)
        return otherwise() if function is None else function(*arguments)

    def means(self, value: Any) -> bool:
        """True if the value means the stand-in's device."""
        if isinstance(value, str):
            return value.partition(":")[0] in self.names
        return isinstance(value, torch.device) and value.type in self.names

    def numbered(self, value: Any) -> Any:
        """Returns the name of a device that is given by its number; any other value unchanged. torch refuses numbers if
        there is no accelerator."""
        # With any device of a type, torch maps numbers itself.
        is_mapped = type(value) is int and (self.real.type == "cpu" or self.real.index is not None)
        return f"hpu:{value}" if is_mapped else value

    def real_of(self, value: Any, what: str) -> Any:
        """Returns the real device for the stand-in's device; any other value unchanged."""
        if not self.means(value):
            return value
        if not torch.compiler.is_compiling():  # it cannot trace the reading of frames
            self.log_mapping(what, value)
        index = (torch.device(value) if isinstance(value, str) else value).index
        # On Gaudi each process has one device, number 0. So 0 means the current device.
        if not index or self.real.index is not None or self.real.type == "cpu":
            return self.real
        return torch.device(self.real.type, index)

    def seen(self, device: torch.device) -> torch.device:
        """Returns the device that the script sees for a tensor's device."""
        if device.type != self.real.type:
            return device
        if device.type == "cpu":
            return _FIRST
        index = device.index
        return torch.device("hpu", 0 if index is None or index == self.current_index() else index)

    def current_index(self) -> int:
        index = self.real.index
        return int(self.call_of_module("current_device", lambda: 0)) if index is None else index

    def real_backend(self, backend: Any) -> Any:
        """Returns the real device's backend of torch.distributed for the stand-in's; any other value unchanged."""
        if not isinstance(backend, str):
            return backend
        parts: dict[str, str] = {}  # a dict: two names may lead to one device
        for part in backend.lower().split(","):
            device, colon, name = part.rpartition(":")
            device = self.real.type if device in self.names else device
            name = self._own_backend() if name in self.backends else name
            parts[device] = f"{device}{colon}{name}"
        mapped = ",".join(parts.values())
        if mapped == backend.lower():
            return backend
        self.log_mapping(f"the backend {mapped} of torch.distributed", backend)
        return mapped

    def _own_backend(self) -> str:
        own = {"cuda": "nccl", "xpu": "xccl"}.get(self.real.type, "gloo")
        available = getattr(torch.distributed, f"is_{own}_available", lambda: True)
        return own if available() else "gloo"

    def log_mapping(self, what: str, given: Any, to: Any = None) -> None:
        """Logs once for each line of code what was mapped; without ``to``, to the real device."""
        file, line = line_of_caller()
        if (file, line, what) not in self._logged:
            self._logged.add((file, line, what))
            logger.info("%s:%d: %s is %s here (%s)", file, line, given, to or self.real, what)


def log_to_standard_error() -> None:
    """Gives the logger a handler of its own, unless the script gave it one."""
    if not logger.handlers:
        handler = _ToStandardError()
        handler.setFormatter(logging.Formatter("habana_mp.gaudi: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
