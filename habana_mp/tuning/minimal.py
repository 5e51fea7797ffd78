"""The smallest set of candidates with which a check passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def minimal_set(candidates: Sequence[_T], passes: Callable[[tuple[_T, ...]], bool]) -> list[_T] | None:
    """Returns candidates with which the check passes, and none of which can be left out; None if it does not pass with
    all of them.

    The candidates that are suspected most stand first. One is found by halving: the last one of the shortest beginning
    that passes. Then the same is done before it, until what was found passes alone. At the end each is left out once
    more. This takes at most 2 k log2(n) + k calls for k of n, not counting the first with none and the one with all.
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
