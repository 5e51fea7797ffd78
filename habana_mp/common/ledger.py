"""What is taken for granted of the private insides of torch, CPython and libraries, and what came of it here.

Whoever relies on such a thing declares an :class:`Assumption`, and asks :func:`holds` (or :func:`require`) before. So
what is not as expected leads to what the assumption promises, never to a crash or a wrong value.

The environment variable ``HABANA_MP_BREAK`` names assumptions, with commas between, that are not to hold: for tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

#: By name, all that were declared; and what was found of each: for a part of it, None where that holds, else why not.
_declared: dict[str, Assumption] = {}
_found: dict[str, dict[str, str | None]] = {}

_broken = set(os.environ.get("HABANA_MP_BREAK", "").split(","))

#: How an assumption's state begins.
NOT_ASKED, HOLDS, DOES_NOT_HOLD = "not asked yet", "holds", "does not hold"


class UnmetError(Exception):
    """What a test raises to say why the assumption does not hold."""


#: What a test raises where something is not as expected. Anything else is somebody else's, such as that of a signal's
#: handler, and passes on.
_UNEXPECTED = (
    *(UnmetError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError),
)


@dataclass(frozen=True, eq=False)  # each is one of its kind
class Assumption:
    """One thing that is taken for granted."""

    #: Short, and the same in every release.
    name: str
    assumed: str
    #: How that is checked before anything relies on it.
    check: str
    #: What happens where it does not hold.
    otherwise: str

    def __post_init__(self) -> None:
        if self.name in _declared:
            raise ValueError(f"the assumption {self.name} is declared twice")
        _declared[self.name] = self
        _found[self.name] = {}


def holds(assumption: Assumption, test: Callable[[], object], part: str = "") -> bool:
    """Is it so? The test runs once; an error that it raises counts as no.

    An assumption of several parts, such as functions that must be there, is asked for each, and holds where all do.
    """
    found = _found[assumption.name]
    if part not in found:
        found[part] = _why_not(assumption, test)[0]
    return found[part] is None


def require(assumption: Assumption, test: Callable[[], object]) -> None:
    """Raise where it is not so. The test runs each time, and a RuntimeError of its own is what is raised.

    Raises:
        RuntimeError: it does not hold.
    """
    reason, error = _why_not(assumption, test)
    _found[assumption.name][""] = reason
    if isinstance(error, RuntimeError):
        raise error
    if reason is not None:
        raise RuntimeError(
            f"habana_mp cannot be used here; what it takes for granted does not hold: {assumption.assumed} "
            f"({assumption.name}: {reason}). Nothing was changed; please report it"
        ) from error


def _why_not(assumption: Assumption, test: Callable[[], object]) -> tuple[str | None, Exception | None]:
    if assumption.name in _broken:
        return "broken on purpose", None
    try:
        return (None, None) if test() else ("it is not so", None)
    except _UNEXPECTED as error:
        return str(error) if isinstance(error, UnmetError) else f"{type(error).__name__}: {error}", error


def rows() -> list[tuple[str, str, str, str, str]]:
    """All that were declared: name, what is assumed, the check, what happens otherwise, and the state."""
    return [(one.name, one.assumed, one.check, one.otherwise, state_of(name)) for name, one in _declared.items()]


def state_of(name: str) -> str:
    """``not asked yet``, ``holds``, or ``does not hold: `` and why."""
    found = _found[name]
    if not found:
        return NOT_ASKED
    reasons = dict.fromkeys(reason for reason in found.values() if reason is not None)
    return f"{DOES_NOT_HOLD}: {'; '.join(reasons)}" if reasons else HOLDS


@contextmanager
def broken(name: str) -> Iterator[None]:
    """For tests: this assumption does not hold for what asks meanwhile."""
    before, was_broken = _found[name], name in _broken
    _found[name] = {}
    _broken.add(name)
    try:
        yield
    finally:
        _found[name] = before
        if not was_broken:
            _broken.discard(name)
