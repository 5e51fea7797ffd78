"""The lists of ``convert``: those in force, and those that decided about calls which the report still counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from habana_mp import _core

#: The last configurations: for each operation, the precision that a list gives it and the place in that list.
_named: deque[Mapping[str, tuple[str, str]]] = deque(maxlen=16)


class _InForce:
    described: Mapping[str, Any] | None = None


def set_configuration(named: Mapping[str, tuple[str, str]], described: Mapping[str, Any] | None) -> None:
    """These lists, and earlier ones, decide about what is counted from now on."""
    _InForce.described = described
    if not _core.counts():  # the earlier lists decided about no row
        _named.clear()
    if named in _named:
        _named.remove(named)
    _named.append(named)


def clear_configuration() -> None:
    """No lists are in force. Those that were stay known, for the rows that they decided."""
    _InForce.described = None


def configuration() -> Mapping[str, Any] | None:
    """Returns the arguments of ``convert`` and what they came to; None if it is not in force."""
    return _InForce.described


def forget_earlier_lists() -> None:
    """Keeps the last lists only: no row is left that earlier ones decided."""
    while len(_named) > 1:
        _named.popleft()


def places_in_lists(operation: str, precision: str | None = None) -> list[str]:
    """Returns where lists name this operation, with this precision if one is given."""
    # Another thread may convert meanwhile, and append: a list is copied at once.
    found = [named.get(operation) for named in list(_named)]
    return [*dict.fromkeys(one[1] for one in found if one is not None and precision in (None, one[0]))]
