"""Times of watched calls on an accelerator, from events on its streams."""

from __future__ import annotations

from collections import defaultdict, deque
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from habana_mp import _core

#: So many calls wait to be read until the accelerator has finished them.
_MOST_WAITING = 10_000

_Span = tuple[torch.Event, torch.Event]


class _Call(NamedTuple):
    record: int
    span: _Span
    inside: list[_Span]
    casts: list[_Span]


class DeviceTimes:
    """The times of calls and of their casts by the numbers of their records. No call waits for the accelerator."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._waiting: deque[_Call] = deque()
        self._seconds: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def mark(self, place: Tensor | torch.Event) -> torch.Event | None:
        """Returns an event that is recorded now on the current stream of a device; None if no time is measured there:
        on another device than torch's accelerator, or while a graph is captured."""
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None or accelerator.type != place.device.type or _core.is_capturing():
            return None
        event = torch.Event(place.device, enable_timing=True)
        event.record(torch.accelerator.current_stream(place.device))
        return event

    def took(
        self, record: int, begin: torch.Event, end: torch.Event, inside: list[_Span] | None, casts: list[_Span] | None
    ) -> None:
        """Takes the events around a call, around the handled calls inside of it, and around its casts."""
        with self._lock:
            self._waiting.append(_Call(record, (begin, end), inside or [], casts or []))
            while len(self._waiting) > _MOST_WAITING and self._waiting[0].span[1].query():
                self._count(self._waiting.popleft())

    def read(self) -> dict[int, tuple[float, float]]:
        """Returns the seconds of the calls and of their casts. Waits until the accelerator has finished them."""
        with self._lock:
            while self._waiting:
                call = self._waiting.popleft()
                call.span[1].synchronize()
                self._count(call)
            return {record: (whole, casts) for record, (whole, casts) in self._seconds.items()}

    def reset(self) -> None:
        with self._lock:
            self._waiting.clear()
            self._seconds.clear()

    def _count(self, call: _Call) -> None:
        sums = self._seconds[call.record]
        sums[0] += _seconds(call.span) - sum(map(_seconds, call.inside))
        sums[1] += sum(map(_seconds, call.casts))


def _seconds(span: _Span) -> float:
    elapsed: Any = span[0].elapsed_time(span[1])
    return float(elapsed) / 1e3


device_times = DeviceTimes()
