"""The result of a tuning, and the list files that it writes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from habana_mp.policy.lists import IN_MODULES, Listed
from habana_mp.policy.precisions import FLOAT32_RESULT
from habana_mp.policy.presets import EVERYWHERE, MODULES, WITHIN_FILE, preset_named


@dataclass(frozen=True, repr=False)
class Tuned:
    """The result of :func:`tune`."""

    #: The lines that run in float32 for accuracy, or have a float32 result, in the form of ``convert(rules=...)``.
    rules: dict[str, str] = field(hash=False)
    #: The lines that run in float32 because they are slower in lower precision on this machine.
    faster: dict[str, str] = field(hash=False)
    #: True if the value is good enough with each seed.
    passed: bool
    #: The number of configurations that were run.
    runs: int
    #: The time of a run in float32, divided by the time of a run with the result; 0 if the budget was spent before it
    #: was known.
    speedup: float
    #: For each seed: the value in float32, and the value with the result.
    values: dict[int, tuple[Any, Any]] = field(hash=False)
    #: True if no line could be left out; False if the budget was spent before that was known.
    is_minimal: bool = True
    preset: str = "hmp-default"
    dtype: str = "bf16"

    def __str__(self) -> str:
        lines = [self._headline()]
        lines += [f"  {line}: {_HOW[precision]} for accuracy" for line, precision in self.rules.items()]
        lines += [f"  {line}: in float32 because it is faster here" for line in self.faster]
        lines += [f"seed {seed}: {value} (float32: {exact})" for seed, (exact, value) in self.values.items()]
        return "\n".join(lines)

    def _headline(self) -> str:
        if not self.passed:
            return f"No lists were found whose value is good enough ({self.runs} configurations)."
        exact = sum(precision == "fp32" for precision in self.rules.values())
        many = "No line is" if not exact else f"{exact} line{'s are' if exact > 1 else ' is'}"
        sums = len(self.rules) - exact
        needed = f"{many} needed in float32" + (f", and {sums} with a float32 result" if sums else "")
        rest = "" if self.is_minimal else " The budget was spent: maybe fewer lines are enough."
        speed = f"; the result is {self.speedup:.2f} times as fast as float32" if self.speedup else ""
        return f"{needed}{speed} ({self.runs} configurations).{rest}"

    def __repr__(self) -> str:
        return f"<Tuned with {len(self.rules)} rules; print() shows them>"

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Writes ``bf16.txt`` (``fp16.txt`` for float16), ``fp32.txt`` and ``within.txt`` into a folder, which is
        created if it is missing. The line before each tuned line contains its reason. The folder is a preset of
        :func:`convert`."""
        write_lists(folder, self.preset, self.dtype, self.rules, self.faster)


_HOW = {"fp32": "in float32", "lower" + FLOAT32_RESULT: "with a float32 result"}


def as_rules(lines: Iterable[str]) -> dict[str, str]:
    """Returns lines in float32, and those that end in ` -> fp32`, in the form of ``convert(rules=...)``."""
    parts = (line.partition(FLOAT32_RESULT) for line in lines)
    return {line: "lower" + FLOAT32_RESULT if arrow else "fp32" for line, arrow, _ in parts}


def write_lists(
    folder: str | os.PathLike[str], preset: str, dtype: str, rules: Mapping[str, str], faster: Iterable[str] = ()
) -> None:
    """Writes the lists of a preset with these rules, and with further lines in float32."""
    lists, path = preset_named(preset), Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    moved = {line for line in (*rules, *faster) if IN_MODULES not in line}
    sums = [line + FLOAT32_RESULT for line, precision in rules.items() if precision != "fp32"]
    exact = [line for line, precision in rules.items() if precision == "fp32"]
    head = f"# Tuned by habana_mp, from the preset {preset}."
    files = {
        f"{dtype}.txt": (
            *(head, *_with_reason(sums, "A float32 result: for accuracy.")),
            *_names(one for one in lists.lower if one.name not in moved and not one.products_only),
        ),
        "fp32.txt": (
            *(head, *_with_reason(exact, "In float32: for accuracy.")),
            *_with_reason(faster, "In float32: it is faster here."),
            *_names(one for one in lists.fp32 if one.name not in moved),
        ),
        WITHIN_FILE: (f"# Where the lists lower: `{MODULES}` or `{EVERYWHERE}`.", lists.within),
    }
    for name, lines in files.items():
        (path / name).write_text("\n".join(lines) + "\n", "utf-8")


def _names(listed: Iterable[Listed]) -> list[str]:
    return list(dict.fromkeys(one.line_text for one in listed))


def _with_reason(lines: Iterable[str], reason: str) -> list[str]:
    return [text for line in lines for text in (f"# {reason}", line)]
