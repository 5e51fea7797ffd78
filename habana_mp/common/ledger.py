"""The ledger of assumptions about the private parts of torch, CPython and libraries, and whether they hold here.

Code that relies on such a part declares an :class:`Assumption`, and calls :func:`holds` (or :func:`require`) first. If
the part is not as expected, the fallback that the assumption declares applies: no crash and no wrong value.

The environment variable ``HABANA_MP_BREAK`` names assumptions, separated by commas, that must not hold. It is for
tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

#: All declared assumptions by name, and the results of each by part: None if the part holds, else the reason.
_declared: dict[str, Assumption] = {}
_found: dict[str, dict[str, str | None]] = {}

_broken = set(os.environ.get("HABANA_MP_BREAK", "").split(","))

#: The texts with which the state of an assumption begins (:func:`state_of`).
NOT_ASKED, HOLDS, DOES_NOT_HOLD = "not asked yet", "holds", "does not hold"


class UnmetError(Exception):
    """Raised by a test; its text is the reason why the assumption does not hold."""


#: The errors of a test that finds something unexpected. All other errors are passed on: they come from elsewhere, for
#: example from a signal handler.
_UNEXPECTED = (
    *(UnmetError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError),
)


@dataclass(frozen=True, eq=False)  # compared by identity
class Assumption:
    """Something private to torch, CPython or a library on which this package relies. Raises ValueError if another one
    has its name."""

    #: Short, and the same in every release.
    name: str
    #: The assumption itself, as a sentence.
    assumed: str
    #: The check that runs before anything relies on the assumption.
    check: str
    #: The fallback if it does not hold.
    otherwise: str

    def __post_init__(self) -> None:
        if self.name in _declared:
            raise ValueError(f"the assumption {self.name} is declared twice")
        _declared[self.name] = self
        _found[self.name] = {}


def holds(assumption: Assumption, test: Callable[[], object], part: str = "") -> bool:
    """True if this part of the assumption holds. Its test runs once.

    An error of the test that shows something unexpected (``_UNEXPECTED``) counts as False; others are passed on. An
    assumption of several parts, such as functions that must exist, is tested for each. It holds if all parts do.
    """
    found = _found[assumption.name]
    if part not in found:
        found[part] = _why_not(assumption, test)[0]
    return found[part] is None


def require(assumption: Assumption, test: Callable[[], object]) -> None:
    """Raises if the assumption does not hold. The test runs each time. A RuntimeError of the test itself is passed on.

    Raises:
        RuntimeError: the assumption does not hold.
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
    """Runs the test. Returns why the assumption does not hold, and the error of the test; each may be None."""
    if assumption.name in _broken:
        return "broken on purpose", None
    try:
        return (None, None) if test() else ("its check failed", None)
    except _UNEXPECTED as error:
        return str(error) if isinstance(error, UnmetError) else f"{type(error).__name__}: {error}", error


def rows() -> list[tuple[str, str, str, str, str]]:
    """Returns all declared assumptions: name, what is assumed, the check, the fallback, and the state."""
    return [(one.name, one.assumed, one.check, one.otherwise, state_of(name)) for name, one in _declared.items()]


def state_of(name: str) -> str:
    """Returns ``not asked yet``, ``holds``, or ``does not hold: `` and the reasons."""
    found = _found[name]
    if not found:
        return NOT_ASKED
    reasons = dict.fromkeys(reason for reason in found.values() if reason is not None)
    return f"{DOES_NOT_HOLD}: {'; '.join(reasons)}" if reasons else HOLDS
