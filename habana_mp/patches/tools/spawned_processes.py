"""Processes that multiprocessing starts: each makes some calls before it imports the script again."""

from __future__ import annotations

import inspect
import multiprocessing.spawn
import multiprocessing.util
from collections.abc import Callable
from typing import Any

from habana_mp.common.ledger import Assumption, holds
from habana_mp.patches.tools.exchange import Exchanged

_PROCESSES = Assumption(
    "cpython.multiprocessing",
    assumed="`multiprocessing.spawn.get_preparation_data` makes a dict that a child unpickles before anything else; "
    "`multiprocessing.util.register_after_fork` has a function called as each process begins, and a `Finalize` there "
    "runs as it ends",
    check="each is there, and the first one takes the process's name",
    otherwise="processes that multiprocessing starts under `habana-mp run` are not converted, or not in its report",
)


def _is_there() -> bool:
    return list(inspect.signature(multiprocessing.spawn.get_preparation_data).parameters) == ["name"]


#: A function and its arguments.
Call = tuple[Any, ...]


class _Called:
    """Makes a call in the process that unpickles it."""

    def __init__(self, call: Call) -> None:
        self._function, *self._arguments = call

    def __reduce__(self) -> Call:
        return self._function, tuple(self._arguments)


#: The calls in child processes, by their names in that dict. A child reads only the names that it knows.
_entries: dict[str, Callable[[], Call | None]] = {}
_exchanged = Exchanged()


def send_to_children(entry: str, call: Callable[[], Call | None]) -> None:
    """Makes each newly started process make the call that ``call`` returns, unless it is None, before anything else."""
    if not _entries and holds(_PROCESSES, _is_there, "spawn"):
        original = multiprocessing.spawn.get_preparation_data

        def get_preparation_data(name: str) -> dict[str, Any]:
            calls = {entry: call() for entry, call in _entries.items()}
            return {**original(name), **{entry: _Called(call) for entry, call in calls.items() if call is not None}}

        _exchanged.exchange(multiprocessing.spawn, "get_preparation_data", get_preparation_data)
    _entries[entry] = call


def stop_sending_to_children(entry: str) -> None:
    """Stops sending this entry."""
    _entries.pop(entry, None)
    if not _entries:
        _exchanged.put_back()


def in_children(owner: Any, begin: Callable[[Any], None], end: Callable[[], None], *, is_child: bool) -> None:
    """Calls ``begin`` and ``end`` as each process of multiprocessing, forked or new, begins and ends, while ``owner``
    lives. ``is_child`` is true if this process itself may be a child; how much multiprocessing knows of it depends on
    its start method."""
    util: Any = multiprocessing.util
    if not holds(_PROCESSES, lambda: callable(util.register_after_fork) and isinstance(util.Finalize, type), "fork"):
        return

    def end_last() -> None:
        util.Finalize(None, end, exitpriority=-100)  # after those of the script

    def begin_and_wait(owner: Any) -> None:
        begin(owner)
        end_last()

    util.register_after_fork(owner, begin_and_wait)
    if is_child:  # a fork of the fork server loses this and runs `begin_and_wait`; a spawned child does not
        end_last()
