"""Patterns of modules, as ``encoder.layer.*.attention``, and which of them match the path of a module.

A path is that of ``named_modules()``, as a tuple of its parts. In a pattern ``*`` stands for one part and ``**`` for
any number of parts. A pattern means the modules that it matches and all modules inside these. Before the path it may
have the class of the outermost module: ``BertModel.encoder``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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


@dataclass(eq=False)
class _Step:
    """How far a path was read: the patterns that end here, and the ways that patterns go on."""

    number: int
    is_any: bool = False  # a `**`, which may take further parts
    ends: list[int] = field(default_factory=list)
    next: dict[str, _Step] = field(default_factory=dict)


@dataclass(frozen=True)
class Match:
    """The patterns that match a path or a part of it from its beginning, and how others may go on inside."""

    patterns: frozenset[int] = frozenset()
    rest: frozenset[int] = frozenset()


class Matcher:
    """Compares paths with all patterns at once: the time does not depend on how many there are."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._steps = [_Step(0)]
        for number, pattern in enumerate(patterns):
            step = self._steps[0]
            for part in parts_of(pattern):
                if part not in step.next:
                    step.next[part] = _Step(len(self._steps), is_any=part == _ANY)
                    self._steps.append(step.next[part])
                step = step.next[part]
            step.ends.append(number)

    def match(self, paths: Iterable[Path], class_names: Iterable[str] = ()) -> Match:
        """Returns the match of a module that has these paths. ``class_names``: of the outermost module."""
        matched: set[int] = set()
        rest: set[int] = set()
        begin = _with_any([self._steps[0]])
        named = [step.next[name] for step in begin for name in class_names if name in step.next]
        begin = {**begin, **_with_any(named)}
        for path in paths:
            steps = begin
            matched.update(_ends(steps))
            for part in path:
                steps = _with_any(_after(steps, part))
                matched.update(_ends(steps))
            rest.update(step.number for step in steps if step.next)
        return Match(frozenset(matched), frozenset(rest))


def _after(steps: Iterable[_Step], part: str) -> Iterator[_Step]:
    for step in steps:
        if step.is_any:
            yield step
        for name in (part, _ONE):
            if name in step.next:
                yield step.next[name]


def _with_any(steps: Iterable[_Step]) -> dict[_Step, None]:
    """Returns these steps, and those that follow where `**` stands for no part."""
    found: dict[_Step, None] = {}
    for step in steps:
        at: _Step | None = step
        while at is not None and at not in found:
            found[at] = None
            at = at.next.get(_ANY)
    return found


def _ends(steps: Iterable[_Step]) -> Iterator[int]:
    for step in steps:
        yield from step.ends


def nearest_path(pattern: str, paths: Iterable[str]) -> str | None:
    """Returns the path that a pattern without a match may mean."""
    names = ".".join(part for part in parts_of(pattern) if part not in (_ONE, _ANY))
    known = list(dict.fromkeys(path for path in paths if path))
    last = parts_of(pattern)[-1]
    with_last = [path for path in known if path.rpartition(".")[2] == last]
    near = difflib.get_close_matches(names, with_last or known, n=1, cutoff=0.0 if with_last else 0.4)
    return near[0] if near else None
