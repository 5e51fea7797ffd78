"""Patterns of modules, as ``encoder.layer.*.attention``, and which of them match the path of a module.

A path is that of ``named_modules()``, as a tuple of its parts. In a pattern ``*`` stands for one part and ``**`` for
any number of parts. A pattern means the modules that it matches and all modules inside these. Before the path it may
have the class of the outermost module: ``BertModel.encoder``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

_ONE = "*"
_ANY = "**"

Path = tuple[str, ...]


@cache
def parts_of(pattern: str) -> Path:
    """Returns the parts of a pattern that has no problem."""
    return tuple(pattern.split("."))


def literals_in(pattern: str) -> int:
    """Returns how many parts of a pattern are names. One with more of them is more specific."""
    return sum(part not in (_ONE, _ANY) for part in parts_of(pattern))


def problem_of_pattern(pattern: str) -> str:
    """Returns what is wrong with a pattern, or an empty text."""
    if not pattern:
        return "a pattern of modules must follow `@`, as in `softmax @ encoder.layer.*`; `**` means every module"
    for part in pattern.split("."):
        if not part or part.split() != [part]:
            return f"the parts of a pattern must be names, `*` or `**`, with dots between them; got `{pattern}`"
        if "*" in part and part not in (_ONE, _ANY):
            return (
                f"`*` must be a whole part of a pattern: it stands for one part of a path, and `**` for any number of "
                f"parts; got `{part}` in `{pattern}`"
            )
    return ""


def may_meet(a: str, b: str) -> bool:
    """True if a module can be meant by both patterns."""

    @cache
    def meet(left: Path, right: Path) -> bool:
        if not left or not right:
            return all(part == _ANY for part in left or right)
        if left[0] == _ANY:
            return meet(left[1:], right) or meet(left, right[1:])
        if right[0] == _ANY:
            return meet(left, right[1:]) or meet(left[1:], right)
        return (left[0] == right[0] or _ONE in (left[0], right[0])) and meet(left[1:], right[1:])

    return meet((*parts_of(a), _ANY), (*parts_of(b), _ANY))


#: What is left of a pattern, given by its number, where a path was read so far.
_Rest = tuple[int, Path]


@dataclass(frozen=True)
class Match:
    """The patterns that match a path or a part of it from its beginning, and how others may go on inside."""

    patterns: frozenset[int]
    rest: frozenset[_Rest]


class Matcher:
    """Compares paths with all patterns."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._begin = _with_any((number, parts_of(pattern)) for number, pattern in enumerate(patterns))

    def match(self, paths: Iterable[Path], class_names: Iterable[str] = ()) -> Match:
        """Returns the match of a module that has these paths. ``class_names``: of the outermost module."""
        matched: set[int] = set()
        rest: set[_Rest] = set()
        names = set(class_names)
        begin = self._begin | _with_any(
            (number, left[1:]) for number, left in self._begin if names.intersection(left[:1])
        )
        for path in paths:
            rests = begin
            for part in (None, *path):
                rests = rests if part is None else _with_any(_after(rests, part))
                matched.update(number for number, left in rests if not left)
            rest |= {one for one in rests if one[1]}
        return Match(frozenset(matched), frozenset(rest))


def _after(rests: Iterable[_Rest], part: str) -> Iterator[_Rest]:
    for number, left in rests:
        if left[:1] == (_ANY,):
            yield number, left
        elif left and left[0] in (part, _ONE):
            yield number, left[1:]


def _with_any(rests: Iterable[_Rest]) -> set[_Rest]:
    """Returns these rests, and those that follow where `**` stands for no part."""
    found: set[_Rest] = set()
    for number, left in rests:
        count = next((at for at, part in enumerate(left) if part != _ANY), len(left))
        found.update((number, left[at:]) for at in range(count + 1))
    return found


def nearest_path(pattern: str, paths: Iterable[str]) -> str | None:
    """Returns the path that a pattern without a match may mean."""
    names = ".".join(part for part in parts_of(pattern) if part not in (_ONE, _ANY))
    known = list(dict.fromkeys(path for path in paths if path))
    last = parts_of(pattern)[-1]
    with_last = [path for path in known if path.rpartition(".")[2] == last]
    near = difflib.get_close_matches(names, with_last or known, n=1, cutoff=0.0 if with_last else 0.4)
    return near[0] if near else None
