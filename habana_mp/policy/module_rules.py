"""Rules by module: the lines of lists that hold in some modules only, and which of them decides in a module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations, groupby, product
from typing import NamedTuple

from habana_mp import ops
from habana_mp.common.errors import ListError
from habana_mp.policy.lists import EVERY, Listed
from habana_mp.policy.names import Assignment, check_result, operations_of, operations_that_compute
from habana_mp.policy.patterns import Match, Matcher, Path, literals_in, may_meet

#: The precision of each operation, and the line that gives it.
Decided = Mapping[str, tuple[str, Listed]]

#: The sources of lines. The higher number decides between two equally specific lines.
FROM_PRESET, FROM_FILES, FROM_RULES = range(3)


class ModuleRule(NamedTuple):
    """A line that holds in some modules."""

    listed: Listed
    precision: str
    source: int

    @property
    def specificity(self) -> tuple[int, bool]:
        """The more specific line decides: the one with more names in its pattern, then the one that names the
        operation."""
        return literals_in(self.listed.pattern), self.listed.name != EVERY


#: What determines the rules in a module and inside it: the operations and precisions of the lines that match, the least
#: specific first, and how other lines may go on. Modules with the same effect need not be told apart.
Effect = tuple[tuple[tuple[str, str], ...], frozenset[int]]

#: The most problems that one error lists.
_MOST_PROBLEMS = 20


class ModuleRules:
    """All lines of a configuration that hold in some modules."""

    def __init__(self, rules: Iterable[ModuleRule]) -> None:
        self.problems: list[str] = []
        self.rules: list[ModuleRule] = []
        self._operations: dict[Listed, ops.Resolved | None] = {}
        for rule in rules:
            try:
                resolved = None if _means_every(rule.listed) else operations_of(rule.listed)
                check_result(rule.listed, rule.precision, resolved)
                self._operations[rule.listed] = resolved
            except ListError as error:
                self.problems.append(str(error))
            else:
                self.rules.append(rule)
        self.problems += _conflicts(self.rules, self._operations)
        self._matcher = Matcher([rule.listed.pattern for rule in self.rules])

    def __bool__(self) -> bool:
        return bool(self.rules)

    def named_operations(self) -> frozenset[str]:
        """Returns the operations that lines name, without those that `*` stands for."""
        return frozenset(one for resolved in self._operations.values() for one in _all_of(resolved))

    def match(self, paths: Iterable[Path], class_names: Iterable[str]) -> Match:
        """Returns the match of a module that has these paths in an outermost module of these classes."""
        return self._matcher.match(paths, class_names)

    def effect_of(self, match: Match) -> Effect:
        """Returns what the matching lines amount to."""
        rules = (self.rules[number] for number in match.patterns)
        ranked = sorted((one.specificity, one.source, one.listed.name, one.precision) for one in rules)
        return tuple((name, precision) for _, _, name, precision in ranked), match.rest

    def patterns_with_match(self, paths: Iterable[Path], class_names: Iterable[str]) -> set[str]:
        """Returns the patterns that match one of these paths."""
        return {self.rules[number].listed.pattern for number in self.match(paths, class_names).patterns}

    def decided(self, matches: Iterable[Match]) -> tuple[dict[str, tuple[str, Listed]], set[Listed]]:
        """Returns what the matching lines say of each operation, and the lines that other models contradict. There is
        a match for each model that holds the module; where they disagree, an operation runs in float32."""
        first, *others = map(self._chosen, matches)
        disputed: set[Listed] = set()
        for other in others:
            for operation in first.keys() | other.keys():
                said = [one[operation] for one in (first, other) if operation in one]
                if len(said) == 1 or said[0][0] != said[1][0]:
                    disputed.update(line for _, line in said)
                    first[operation] = "fp32", said[0][1]
        return first, disputed

    def lines_about(self, operation: str) -> list[tuple[str, Listed]]:
        """Returns all lines that mean an operation, and their precisions."""
        meant = (one for one in self.rules if any(operation == name for name, _ in self._meant(one)))
        return [(one.precision, one.listed) for one in meant]

    def _chosen(self, match: Match) -> dict[str, tuple[str, Listed]]:
        best: dict[str, tuple[tuple[int, bool, int, bool], ModuleRule]] = {}
        for number in sorted(match.patterns):
            rule = self.rules[number]
            for operation, is_exact in self._meant(rule):
                key = (*rule.specificity, rule.source, is_exact)
                if operation not in best or best[operation][0] < key:
                    best[operation] = key, rule
        return {operation: (rule.precision, rule.listed) for operation, (_, rule) in best.items()}

    def _meant(self, rule: ModuleRule) -> Iterator[tuple[str, bool]]:
        if rule.listed.name == EVERY:
            yield from ((operation, True) for operation in operations_that_compute())
            return
        resolved = self._operations[rule.listed]
        if resolved is not None:
            yield from ((operation, True) for operation in resolved.exact)
            yield from ((operation, False) for operation in resolved.family)


def _means_every(listed: Listed) -> bool:
    return listed.name == EVERY and not listed.problem


#: The line that stands for a kept module.
KEPT = Listed(EVERY, "hmp.keep", 0)


def kept_operations(precision: str) -> Decided:
    """Returns what holds in a module that is kept in this precision."""
    return dict.fromkeys(operations_that_compute(), (precision, KEPT))


def _all_of(resolved: ops.Resolved | None) -> tuple[str, ...]:
    return () if resolved is None else resolved.exact + resolved.family


def _conflicts(rules: Iterable[ModuleRule], operations: Mapping[Listed, ops.Resolved | None]) -> list[str]:
    """Returns a problem for each two lines of one source that are equally specific, may mean the same module, and
    disagree."""

    def key(rule: ModuleRule) -> tuple[int, tuple[int, bool]]:
        return rule.source, rule.specificity

    problems = []
    for _, group in groupby(sorted(rules, key=key), key=key):
        by_precision: dict[str, list[ModuleRule]] = {}
        for rule in group:
            by_precision.setdefault(rule.precision, []).append(rule)
        for some, others in combinations(by_precision.values(), 2):
            for one, other in product(some, others):
                if _meet(operations[one.listed], operations[other.listed]) and may_meet(
                    one.listed.pattern, other.listed.pattern
                ):
                    problems.append(_conflict(one, other))
                if len(problems) == _MOST_PROBLEMS:
                    return [*problems, "... and maybe more like these"]
    return problems


def _meet(a: ops.Resolved | None, b: ops.Resolved | None) -> bool:
    if a is None or b is None:
        return a is b
    return not set(a.exact).isdisjoint(b.exact) or not set(a.family).isdisjoint(b.family)


def _conflict(one: ModuleRule, other: ModuleRule) -> str:
    return (
        f"{other.listed.where}: `{other.listed.line_text}` gives {other.precision}, and the equally specific line "
        f"`{one.listed.line_text}` at {one.listed.where} gives {one.precision} to the same operation in modules that "
        "both mean: remove one of the two, or name more of the path in one"
    )


def problems_of(lower: Iterable[Listed], fp32: Iterable[Listed] = ()) -> list[str]:
    """Returns all problems in the lines of a list, or of two lists that are used together."""
    lines = [*((one, one.precision("lower")) for one in lower), *((one, one.precision("fp32")) for one in fp32)]
    plain = Assignment((one, precision) for one, precision in lines if not one.pattern)
    in_modules = ModuleRules(ModuleRule(one, kind, FROM_FILES) for one, kind in lines if one.pattern)
    return plain.problems + in_modules.problems


NO_MODULE_RULES = ModuleRules(())
