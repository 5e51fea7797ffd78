"""Which line of lists decides about an operation, everywhere and in a module: some lines hold in some modules only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

from habana_mp import ops
from habana_mp.common.errors import ListError
from habana_mp.policy.lists import EVERY, RESULT, Listed, parse_line
from habana_mp.policy.names import check_result, operations_of, operations_that_compute
from habana_mp.policy.patterns import Match, Matcher, Path, literals_in, may_meet
from habana_mp.policy.precisions import PRECISIONS, dtype_meant

#: The precision of each operation, and the line that gives it.
Decided = Mapping[str, tuple[str, Listed]]

#: The sources of lines. The higher number decides between two equally specific lines.
FROM_PRESET, FROM_FILES, FROM_RULES = range(3)


class ModuleRule(NamedTuple):
    """A line with its precision. Without a pattern it holds everywhere."""

    listed: Listed
    precision: str
    source: int

    @property
    def rank(self) -> tuple[int, bool, int]:
        """The more specific line decides: the one with more names in its pattern, then the one that names the
        operation, then the one of the later source."""
        literals = literals_in(self.listed.pattern) if self.listed.pattern else -1
        return literals, self.listed.name != EVERY, self.source


class ModuleRules:
    """All lines of a configuration: ``rules`` hold in some modules, ``everywhere`` is what the others decide."""

    def __init__(self, lines: Iterable[ModuleRule]) -> None:
        problems: list[tuple[int, str]] = []
        self._operations: dict[Listed, ops.Resolved | None] = {}
        known: dict[int, ModuleRule] = {}
        for number, rule in enumerate(lines):
            try:
                is_every = rule.listed.name == EVERY and rule.listed.pattern and not rule.listed.problem
                resolved = None if is_every else operations_of(rule.listed)
                check_result(rule.listed, rule.precision, resolved)
                self._operations[rule.listed] = resolved
            except ListError as error:
                problems.append((number, str(error)))
            else:
                known[number] = rule
        problems += _conflicts(known, self._operations)
        self.problems = [text for _, text in sorted(problems)]
        self.everywhere: Decided = self._chosen(one for one in known.values() if not one.listed.pattern)
        self.rules = [one for one in known.values() if one.listed.pattern]
        self._matcher = Matcher([rule.listed.pattern for rule in self.rules])

    def __bool__(self) -> bool:
        return bool(self.rules)

    def named_operations(self) -> frozenset[str]:
        """Returns the operations that ``rules`` name, without those that `*` stands for."""
        named = (self._operations[rule.listed] for rule in self.rules)
        return frozenset(one for resolved in named if resolved for one in resolved.exact + resolved.family)

    def match(self, paths: Iterable[Path], class_names: Iterable[str]) -> Match:
        """Returns the match of a module that has these paths in an outermost module of these classes."""
        return self._matcher.match(paths, class_names)

    def patterns_with_match(self, paths: Iterable[Path], class_names: Iterable[str]) -> set[str]:
        """Returns the patterns that match one of these paths."""
        return {self.rules[number].listed.pattern for number in self.match(paths, class_names).patterns}

    def decided(self, matches: Iterable[Match]) -> tuple[dict[str, tuple[str, Listed]], set[Listed]]:
        """Returns what the matching lines say of each operation, and the lines that other models contradict. There is
        a match for each model that holds the module; where they disagree, an operation runs in float32."""
        first, *others = (self._chosen(self.rules[number] for number in sorted(one.patterns)) for one in matches)
        disputed: set[Listed] = set()
        for other in others:
            for operation in first.keys() | other.keys():
                said = [one[operation] for one in (first, other) if operation in one]
                if len(said) == 1 or said[0][0] != said[1][0]:
                    disputed.update(line for _, line in said)
                    first[operation] = "fp32", said[0][1]
        return first, disputed

    def _chosen(self, rules: Iterable[ModuleRule]) -> dict[str, tuple[str, Listed]]:
        best: dict[str, tuple[tuple[object, bool], ModuleRule]] = {}
        for rule in rules:
            rank = rule.rank
            for operation, is_exact in self._meant(rule):
                key = rank, is_exact
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


#: The line that stands for a kept module.
KEPT = Listed(EVERY, "hmp.keep", 0)


def kept_operations(precision: str) -> Decided:
    """Returns what holds in a module that is kept in this precision."""
    return dict.fromkeys(operations_that_compute(), (precision, KEPT))


def _conflicts(
    rules: Mapping[int, ModuleRule], operations: Mapping[Listed, ops.Resolved | None]
) -> Iterator[tuple[int, str]]:
    """Yields a problem, and the number of a line, for each two lines of one source that are equally specific, may mean
    the same module, and disagree. An operation's own name takes precedence over its family's."""
    exact: dict[str, list[ModuleRule]] = {}
    family: dict[str, list[ModuleRule]] = {}
    found: set[tuple[Listed, Listed]] = set()
    for claims, (number, rule) in product((exact, family), rules.items()):
        named = operations[rule.listed] or ops.Resolved((rule.listed.name,))
        for operation in named.exact if claims is exact else named.family:
            own = () if claims is exact else exact.get(operation, ())
            if own and any(one.rank == rule.rank and one.listed.pattern == rule.listed.pattern for one in own):
                continue
            others = claims.setdefault(operation, [])
            for other in others:
                pair = other.listed, rule.listed
                is_other = other.precision != rule.precision and other.rank == rule.rank and pair not in found
                if is_other and may_meet(*(one.pattern for one in pair)):
                    found.add(pair)
                    yield number, _conflict(operation, other, rule)
            others.append(rule)


def _conflict(operation: str, one: ModuleRule, other: ModuleRule) -> str:
    first, second = one.listed, other.listed
    if first.pattern:
        return (
            f"{second.where}: `{second.line_text}` gives {other.precision}, and the equally specific line "
            f"`{first.line_text}` at {first.where} gives {one.precision} to the same operation in modules that both "
            "mean: remove one of the two, or name more of the path in one"
        )
    if first.float32_result or second.float32_result:
        return (
            f"{second.where}: `{second.line_text}` gives {operation} another precision than `{first.line_text}` at "
            f"{first.where}: remove one of the two"
        )
    if first.name == second.name:
        return f"{second.where}: `{second.name}` is in both lists; it is also at {first.where}: remove one of the two"
    return (
        f"{second.where}: `{second.name}` is the same operation of torch ({operation}) as `{first.name}` at "
        f"{first.where}, in the other list: remove one of the two"
    )


def rules_of(lower: Iterable[Listed], fp32: Iterable[Listed], precision: str, source: int) -> list[ModuleRule]:
    """Returns the lines of two lists that are used together. The first one gives this precision."""
    lists = ((lower, precision), (fp32, "fp32"))
    return [ModuleRule(one, one.precision(of_list), source) for lines, of_list in lists for one in lines]


def given_rules(rules: Mapping[str, object] | None, lower: str) -> tuple[ModuleRule, ...]:
    """Returns the lines of ``convert(rules=...)``, each with its precision.

    Raises:
        ListError: something in it is wrong; the message has one line for each problem.
    """
    if rules is None:
        return ()
    if not isinstance(rules, Mapping):
        raise ListError(
            'rules: must be a dict of lines and precisions, as {"softmax @ encoder.**": "fp32"}; '
            f"got {type(rules).__name__}: {rules!r}"
        )
    lines: list[ModuleRule] = []
    problems: list[str] = []
    for key, value in rules.items():
        try:
            lines.append(_given_rule(key, value, lower))
        except ListError as error:
            problems.append(str(error))
    if problems:
        raise ListError("\n".join(problems))
    return tuple(lines)


def _given_rule(key: object, value: object, lower: str) -> ModuleRule:
    source = f"rules[{key!r}]"
    if not isinstance(key, str):
        raise ListError(f'{source}: a rule must be text, as "softmax @ encoder.**"; got {type(key).__name__}')
    operands, arrow, result = (
        (part.strip() for part in value.partition(RESULT)) if isinstance(value, str) else (value, "", "")
    )
    is_in_key = key.replace(" ", "").endswith(f"{RESULT}{result}")
    listed = parse_line(key if not arrow or is_in_key else f"{key} {arrow} {result}", source, 0)
    if listed.problem:
        raise ListError(f"{source}: {listed.problem}")
    is_lower = isinstance(operands, str) and operands.lower() == "lower"
    dtype = dtype_meant(operands)
    if not is_lower and dtype not in PRECISIONS:
        raise ListError(
            f'{source}: the precision must be "lower", "bf16", "fp16" or "fp32"; got {value!r}. For a product it may '
            'also be "lower -> fp32"'
        )
    return ModuleRule(listed, listed.precision(lower if dtype is None else PRECISIONS[dtype]), FROM_RULES)
