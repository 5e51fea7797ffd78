"""Results on devices, whose values are checked there. The answer is read later, so that no call waits for a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from habana_mp.reporting.judging import tensors_in


class DeviceFlags:
    """For each device, whether a NaN was seen there."""

    def __init__(self, seen: Callable[[], None]) -> None:
        self._seen = seen
        self._flags: dict[torch.device, torch.Tensor] = {}
        #: Copies of flags that are under way, with the event after which they are complete.
        self._copies: dict[torch.device, tuple[torch.Tensor, Any]] = {}

    def note(self, result: Any) -> None:
        """Checks results on their devices."""
        for tensor in tensors_in(result):
            device = tensor.device
            if device.type in ("cpu", "meta") or not tensor.is_floating_point() or _is_captured(device):
                continue
            with torch.no_grad():
                flag = self._flags.get(device)
                if flag is None:
                    flag = self._flags[device] = torch.zeros((), dtype=torch.bool, device=device)
                flag.logical_or_(torch.isnan(tensor.detach()).any())
        self.look()

    def look(self) -> None:
        """Reads the copies that are complete, and begins others."""
        for device, flag in self._flags.items():
            if _is_captured(device):
                continue
            copy = self._copies.get(device)
            if copy is not None:
                if not copy[1].query():
                    continue
                del self._copies[device]
                if bool(copy[0]):
                    flag.zero_()
                    self._seen()
                    continue
            if device.type == "cuda":
                memory = torch.empty((), dtype=torch.bool, pin_memory=True)
                memory.copy_(flag, non_blocking=True)
                event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's has no types
                event.record(torch.cuda.current_stream(device))
                self._copies[device] = memory, event
            elif bool(flag):
                flag.zero_()
                self._seen()


def _is_captured(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
