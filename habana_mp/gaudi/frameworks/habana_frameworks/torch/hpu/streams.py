"""Streams and events. A CPU has one stream, and all work in it is done when the call returns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from habana_mp.gaudi import devices

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
    "synchronize",
]


class _OnHost:
    """A stream or an event of the CPU. It never waits, since all work is done."""

    def synchronize(self) -> None:
        return None

    def query(self) -> bool:
        return True


class _HostEvent(_OnHost):
    """A point in time. All earlier calls are done by then."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._enable_timing = enable_timing
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        return None

    def elapsed_time(self, end_event: _HostEvent) -> float:
        """Returns the milliseconds from this event to the other."""
        if not (self._enable_timing and end_event._enable_timing):
            raise RuntimeError("both events must be made with `enable_timing=True`")
        if self._time is None or end_event._time is None:
            raise RuntimeError("both events must be recorded before the time between them is asked for")
        return (end_event._time - self._time) * 1000


class _HostStream(_OnHost):
    """The CPU's one stream."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.priority = priority
        self.device = device

    def wait_stream(self, stream: Any) -> None:
        return None

    def wait_event(self, event: Any) -> None:
        return None

    def record_event(self, event: Any = None) -> Any:
        event = _HostEvent() if event is None else event
        event.record(self)
        return event


_default = _HostStream()
#: The stream that is current on the CPU, alone in a list.
_current: list[Any] = [_default]


def _on_host() -> bool:
    return not hasattr(devices().module, "Stream") or devices().real.type == "cpu"


class _Chosen(type):
    """A metaclass: calls create objects of the real device's class, and `isinstance` recognises them."""

    def _real(cls) -> Any:
        on_host: dict[str, type] = {"Stream": _HostStream, "Event": _HostEvent}
        return on_host[cls.__name__] if _on_host() else getattr(devices().module, cls.__name__)

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        here = devices()
        keywords = {name: here.real_of(value, cls.__name__) for name, value in keywords.items()}
        return cls._real()(*(here.real_of(value, cls.__name__) for value in arguments), **keywords)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls._real())


class Stream(metaclass=_Chosen):
    """A stream of the real device."""


class Event(metaclass=_Chosen):
    """An event of the real device."""


@contextmanager
def _stream_on_host(stream: Any) -> Iterator[Any]:
    before = _current[0]
    set_stream(stream)
    try:
        yield stream
    finally:
        _current[0] = before


def stream(stream: Any) -> AbstractContextManager[Any]:
    """Returns a context in which this stream is the current one. None changes nothing."""
    return _stream_on_host(stream) if _on_host() else devices().module.stream(stream)


StreamContext = stream


def current_stream(device: Any = None) -> Any:
    """Returns the current stream."""
    return _current[0] if _on_host() else devices().module.current_stream()


def default_stream(device: Any = None) -> Any:
    """Returns the stream that is current if no other was chosen."""
    return _default if _on_host() else devices().call_of_module("default_stream", current_stream)


def set_stream(stream: Any) -> None:
    """Makes this stream the current one from now on."""
    if stream is None:
        return
    if _on_host():
        _current[0] = stream
    else:
        devices().module.set_stream(stream)


def synchronize(device: Any = None) -> None:
    """Waits until the device has finished all its work."""
    devices().module.synchronize()
