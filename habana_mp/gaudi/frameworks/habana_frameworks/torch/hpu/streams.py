"""Streams and events. A CPU has one stream, and all work in it is done when the call returns."""

from __future__ import annotations

import time
import types
from contextlib import AbstractContextManager
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


class _HostEvent:
    """A point in time. All earlier calls are done by then."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._enable_timing = enable_timing
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: _HostEvent) -> float:
        """Returns the milliseconds from this event to the other."""
        if not (self._enable_timing and end_event._enable_timing):
            raise RuntimeError("both events must be made with `enable_timing=True`")
        if self._time is None or end_event._time is None:
            raise RuntimeError("both events must be recorded before the time between them is asked for")
        return (end_event._time - self._time) * 1000


class _HostStream:
    """The CPU's one stream."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.priority = priority
        self.device = device

    def synchronize(self) -> None:
        return None

    def query(self) -> bool:
        return True

    def wait_stream(self, stream: Any) -> None:
        return None

    def wait_event(self, event: Any) -> None:
        return None

    def record_event(self, event: Any = None) -> Any:
        event = _HostEvent() if event is None else event
        event.record(self)
        return event


class _HostStreamContext:
    """A context in which a stream is the current one."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._before: Any = None

    def __enter__(self) -> Any:
        self._before = _Current.stream
        if self.stream is not None:
            _Current.stream = self.stream
        return self.stream

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: types.TracebackType | None
    ) -> None:
        _Current.stream = self._before


class _Current:
    default = _HostStream()
    stream: Any = default


def _on_host() -> bool:
    return not hasattr(devices().module, "Stream") or devices().real.type == "cpu"


class _Chosen(type):
    """A metaclass: calls create objects of the real device's class, and `isinstance` recognises them."""

    def _real(cls) -> Any:
        return _HOST[cls.__name__] if _on_host() else getattr(devices().module, cls.__name__)

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


class StreamContext(metaclass=_Chosen):
    """A context in which a stream is the current one."""


_HOST: dict[str, Any] = {"Stream": _HostStream, "Event": _HostEvent, "StreamContext": _HostStreamContext}


def stream(stream: Any) -> AbstractContextManager[Any]:
    """Returns a context in which this stream is the current one. None changes nothing."""
    return _HostStreamContext(stream) if _on_host() else devices().module.stream(stream)


def current_stream(device: Any = None) -> Any:
    """Returns the current stream."""
    return _Current.stream if _on_host() else devices().module.current_stream()


def default_stream(device: Any = None) -> Any:
    """Returns the stream that is current if no other was chosen."""
    if _on_host():
        return _Current.default
    module = devices().module
    return module.default_stream() if hasattr(module, "default_stream") else module.current_stream()


def set_stream(stream: Any) -> None:
    """Makes this stream the current one from now on."""
    if stream is None:
        return
    if _on_host():
        _Current.stream = stream
    else:
        devices().module.set_stream(stream)


def synchronize(device: Any = None) -> None:
    """Waits until the device has finished all its work."""
    devices().module.synchronize()
