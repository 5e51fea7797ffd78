"""A finding, and the lines of lists that mend it, in the form of ``rules=`` of ``convert``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from habana_mp import ops
from habana_mp.policy.lists import EVERY
from habana_mp.policy.patterns import Path, problem_of_pattern
from habana_mp.policy.precisions import FLOAT32_RESULT
from habana_mp.reporting.records import short_place

#: Rules of more modules than this are no advice.
_MOST_PATTERNS = 3

_LISTS = {"fp32": "the float32 list", "lower": "the list of the lower precision"}


@dataclass(frozen=True, repr=False)
class Finding:
    """Something worth a look, of a report, a diagnosis or an audit. Each of them fills the fields that it knows."""

    kind: str
    text: str
    #: The lines that mend it, as ``rules=`` of ``convert`` takes them; empty if lines cannot.
    rule: Mapping[str, str] = field(default_factory=dict, hash=False)
    # A report fills:
    #: The indices of its rows in the report.
    rows: tuple[int, ...] = ()
    #: Seconds of casts that the advice would save, if known.
    saves: float | None = None
    # A diagnosis fills:
    operation: str = ""
    module: str = ""
    file: str = ""
    line: int = 0
    #: The decrease of the step's deviation from float32 if only this operation runs in float32, as a share of the exact
    #: value that improves most. Infinite if that value is finite only in this case.
    effect: float = 0.0
    local_error: float = 0.0
    inherited_error: float = 0.0
    #: The number of the step in which it was found, counted from 0.
    step: int = 0
    #: The ranks on which it was found, if the diagnosis is of all ranks.
    ranks: tuple[int, ...] = ()
    # An audit fills:
    #: The first tensor, the layer or the module; empty for the whole model.
    name: str = ""
    dtype: str = ""

    @property
    def place(self) -> str:
        return short_place(self.file, self.line) if self.file else ""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Finding {self.kind}: {self.text}>"

    def to_dict(self, *names: str) -> dict[str, Any]:
        """Returns these fields, or all, as plain data."""
        values = {name: getattr(self, name) for name in names or self.__dataclass_fields__}
        return {name: list(one) if isinstance(one, tuple) else one for name, one in values.items()}


def rules_for(operation: str, modules: Sequence[str | None], precision: str) -> dict[str, str]:
    """Returns the rules that give the operation this precision (``"fp32"``, ``"lower"`` or ``"lower -> fp32"``) in
    these modules, or everywhere if it runs outside of modules (None) too; nothing if no list could. ``"*"`` stands for
    all operations of these modules."""
    if precision != "fp32" and not ops.has_kernel(operation):
        return {}
    # Under a function mode and in compiled code, torch calls functions in place of operators.
    operation = ops.function_of(operation)
    if operation != EVERY and ops.resolve(operation) is None:
        return {}
    if ops.is_in_place(operation) or not ops.computes(operation) or ops.gives_view(operation):
        return {}
    patterns = _patterns(dict.fromkeys(_path_of(module) for module in modules if module is not None))
    if None in modules or len(patterns) > _MOST_PATTERNS or any(map(problem_of_pattern, patterns)):
        return {} if operation == EVERY else {operation: precision}
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
    groups: dict[tuple[int, str], list[Path]] = {}
    for path in paths:
        groups.setdefault((len(path), path[-1]), []).append(path)
    columns = [zip(*group, strict=True) for group in groups.values()]
    return [".".join(parts[0] if len(set(parts)) == 1 else "*" for parts in column) for column in columns]
