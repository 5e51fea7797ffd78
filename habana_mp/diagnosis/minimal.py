"""The smallest set of candidates with which a check passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def minimal_set(candidates: Sequence[_T], passes: Callable[[tuple[_T, ...]], bool]) -> list[_T] | None:
    """Returns candidates with which the check passes, and of which it needs each one. Returns None if the check fails
    even with all candidates.

    The most suspected candidates must come first. The shortest beginning of the sequence that passes is found by
    halving, and its last candidate is needed. Then the same is done with the candidates before it, until the found
    candidates pass alone. At the end the check is called once without each of them. To find k of n candidates takes at
    most 2 k log2(n) + k calls, in addition to the first calls with no candidate and with all.
    """
    if passes(()):
        return []
    if not passes(tuple(candidates)):
        return None
    found: list[_T] = []
    left = list(candidates)
    while True:
        least, most = 1, len(left)
        while least < most:
            middle = (least + most) // 2
            if passes((*found, *left[:middle])):
                most = middle
            else:
                least = middle + 1
        found.append(left[most - 1])
        left = left[: most - 1]
        if not left or passes(tuple(found)):
            break
    for one in list(found):
        others = tuple(other for other in found if other is not one)
        if len(found) > 1 and passes(others):
            found = list(others)
    return found
