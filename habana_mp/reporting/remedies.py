"""The lines of lists that mend a finding, in the form of ``rules=`` of ``convert``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from habana_mp import ops
from habana_mp.policy.lists import EVERY
from habana_mp.policy.patterns import Path, problem_of_pattern
from habana_mp.policy.precisions import FLOAT32_RESULT
from habana_mp.reporting.records import Row

#: Rules of more modules than this are no advice.
_MOST_PATTERNS = 3

_LISTS = {"fp32": "the float32 list", "lower": "the list of the lower precision"}


def rules_for(rows: Sequence[Row], precision: str) -> dict[str, str]:
    """Returns the rules that give the operation of these rows this precision (``"fp32"``, ``"lower"`` or
    ``"lower -> fp32"``) in their modules; nothing if no list could."""
    # Under a function mode and in compiled code, torch calls functions in place of operators.
    operation = ops.function_of(rows[0].operation)
    if ops.resolve(operation) is None or operation == EVERY:
        return {}
    if ops.is_in_place(operation) or not ops.computes(operation) or ops.gives_view(operation):
        return {}
    if any(row.module is None for row in rows):
        return {operation: precision}
    patterns = _patterns(dict.fromkeys(_path_of(row.module or "") for row in rows))
    if len(patterns) > _MOST_PATTERNS or any(map(problem_of_pattern, patterns)):
        return {operation: precision}
    return {f"{operation} @ {pattern}": precision for pattern in patterns}


def in_words(rules: Mapping[str, str], begin: str = ". Write") -> str:
    """Returns words that say where to write these lines, and the argument of `convert`, or an empty text."""
    if not rules:
        return ""
    of_list, arrow, _ = next(iter(rules.values())).partition(FLOAT32_RESULT)
    lines = ", ".join(f"`{line}{arrow}`" for line in rules)
    return f"{begin} {lines} into {_LISTS[of_list]}, or give `rules={json.dumps(dict(rules))}`"


def _path_of(module: str) -> Path:
    """Returns the path of a module without the class of the outermost one, if anything is left then."""
    root, *parts = module.split(".")
    # A module that belongs to no other one has its class in angle brackets.
    named = [part for part in parts if not part.startswith("<")]
    return tuple(named) if named else (root.partition("#")[0],)


def _patterns(paths: Iterable[Path]) -> list[str]:
    """Returns few patterns that match these paths: parts that differ become `*`."""
    by_length: dict[tuple[int, str], list[Path]] = {}
    for path in paths:
        by_length.setdefault((len(path), path[-1]), []).append(path)
    return [".".join(_merged(group)) for group in by_length.values()]


def _merged(paths: Sequence[Path]) -> Path:
    return tuple(parts[0] if len(set(parts)) == 1 else "*" for parts in zip(*paths, strict=True))
