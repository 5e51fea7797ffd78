"""The threads of a step: the one that runs it, and those that it starts."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from habana_mp import _core
from habana_mp.patches.tools.exchange import Exchanged


class StepThreads:
    """Tells calls of a step from those of other threads."""

    def __init__(self) -> None:
        self._first = threading.get_ident()
        self._started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def has_this(self) -> bool:
        """True if this thread belongs to the step. Threads that Python did not start are those of torch's backward."""
        own = threading.get_ident()
        if own == self._first:
            return True
        this = next((one for one in threading.enumerate() if one.ident == own), None)
        return _core.computes_gradient() if this is None else this in self._started

    @contextmanager
    def followed(self) -> Iterator[None]:
        """A block in which threads that the step starts belong to it."""
        exchanged = Exchanged()
        former = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if self.has_this():
                self._started.add(thread)
            former(thread)

        exchanged.exchange(threading.Thread, "start", start)
        try:
            yield
        finally:
            exchanged.put_back()
