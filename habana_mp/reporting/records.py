"""The data of a report: rows of calls, the cached weights, and what went from one row to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from habana_mp import _core
from habana_mp.policy.module_rules import KEPT
from habana_mp.policy.options import Detail
from habana_mp.policy.precisions import FLOAT32_RESULT

#: The precisions of calls, in the order of the report. ``unchanged`` stands for calls that were left alone, and those
#: after it are dtypes that calls were given.
PRECISIONS = _core.precisions


@dataclass(frozen=True)
class Row:
    """The calls of one operation with one outcome: one precision, one reason, and one place if the report has places.
    ``unchanged`` stands for calls that were left alone."""

    operation: str
    precision: str
    calls: int
    casts: int
    bytes: int
    reason: str = ""
    #: The list and line, or the rule, behind the reason.
    rule: str | None = None
    #: True if that is a line of the user's own.
    is_own: bool = False
    module: str | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None
    #: The function of torch or of a library that ran without casts, if that is the reason.
    inside: str = ""
    #: ``forward``, ``backward``, or ``traced`` for calls that a compiler traced.
    phase: str = "forward"
    #: The number of times that a cached cast of a weight was used.
    hits: int = 0
    #: The number of casts of weights that no cache saves: the first one of a weight, also after a step, and
    #: those of weights that are too small to be cached while they are trained.
    needed: int = 0
    #: The time of the calls, without covered calls inside of them; and the part of it that their casts took.
    seconds: float | None = None
    cast_seconds: float | None = None
    #: The position of the row in the order of first calls.
    order: int = 0
    #: The number of weights without a cached cast, by reason.
    refused: Mapping[str, int] = field(default_factory=dict, hash=False)
    #: What was noticed about values: the ``largest count`` and ``largest angle`` that were rounded, and the number of
    #: calls that were ``with float64``, ``in lower statistics``, returned ``losses``, or returned values that were
    #: ``carried`` to the next step.
    noticed: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def ran_in(self) -> str:
        """The precision of the call, with that of its result where it is another one."""
        return in_and_out(self.precision, self.reason)

    @property
    def is_listed(self) -> bool:
        """True if a line of a list decides."""
        return is_by_list(self.reason)

    @property
    def why(self) -> str:
        """The reason in words."""
        if self.rule == KEPT.source:
            return f"kept by {self.rule}"
        if self.inside:
            return f"inside {self.inside}, which computes in float32"
        return REASONS[self.reason].description if self.reason in REASONS else self.reason

    @property
    def casts_up(self) -> int:
        return self.casts if self.precision == "fp32" else 0

    @property
    def casts_down(self) -> int:
        return self.casts - self.casts_up

    @property
    def is_lower(self) -> bool:
        return self.precision in ("bf16", "fp16")

    @property
    def place(self) -> str:
        """File and line in a short form; empty if they are unknown."""
        return "" if self.file is None else short_place(self.file, self.line)

    def to_dict(self) -> dict[str, Any]:
        derived = {name: getattr(self, name) for name in ("ran_in", "why", "casts_up", "casts_down")}
        return {**asdict(self), **derived}


def is_by_list(reason: str) -> bool:
    """True if a line of a list is the reason."""
    return reason in ("list", "float32_result")


def in_and_out(precision: str, reason: str) -> str:
    """Returns the precision of calls with this reason, as lists have it: `bf16 -> fp32` for a float32 result."""
    return precision + FLOAT32_RESULT if reason == "float32_result" else precision


class Reason(NamedTuple):
    """A reason of a decision, as ``src/rules/decision.hpp`` has it."""

    #: The rule of docs/rules.md, the option or the function that decides.
    rule: str
    #: True if casts are off for all calls, so that it says nothing about one operation.
    casts_off: bool
    #: The kind of finding that reports each such call, or an empty text.
    finding: str
    #: Its meaning, and when it applies.
    description: str
    when: str


#: The reasons by their words.
REASONS = {word: Reason(*row) for word, row in _core.reasons.items()}


def short_path(file: str) -> str:
    """Returns an installed file relative to site-packages, and a file in the working directory relative to that."""
    _, installed, rest = file.rpartition("/site-packages/")
    if installed:
        return rest
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file


def short_place(file: str, line: int | None) -> str:
    return f"{short_path(file)}:{line}"


def plain_name(operation: str) -> str:
    """Returns the name of an operation in lists and reports: `*` is mul there. mul_ is another operation."""
    return operation.strip("_") if operation.startswith("__") else operation


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


#: The end of the range of float16.
LARGEST_FLOAT16 = 65504.0


def shares_of_range(largest: Mapping[str, float]) -> dict[str, float]:
    """Returns the largest magnitudes as shares of the range of float16, the largest first."""
    ranked = sorted(largest.items(), key=lambda item: -item[1])
    return {operation: value / LARGEST_FLOAT16 for operation, value in ranked}


def line_of_range(shares: Mapping[str, Any], most: int = 3) -> str:
    """Returns a line with the operations that came nearest to the end of the range of float16, or nothing."""
    if not shares:
        return ""
    named = ", ".join(f"{share:.0%} in `{operation}`" for operation, share in list(shares.items())[:most])
    return f"The largest finite values that the guard saw in float16, as shares of its range (65504): {named}"


def with_ranks(text: str, ranks: Sequence[int]) -> str:
    """Returns a text about an operation with the ranks that it is about, if there are any."""
    if not ranks:
        return text
    return f"{text} (rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))})"


@dataclass(frozen=True)
class CachedWeights:
    """The cached casts of weights: how often they were used, and the memory that they take now.

    ``refused`` counts the uses of weights whose casts could not be cached: their memory had other owners too, or the
    limit was reached. Such a weight was cast for the call, as without a cache. ``reasons`` has the numbers by reason.
    ``products`` counts the products with a weight that habana_mp's kernels computed.
    """

    hits: int = 0
    refreshes: int = 0
    refreshed_bytes: int = 0
    refused: int = 0
    products: int = 0
    weights: int = 0
    bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        reasons = ", ".join(f"{reason}: {times}" for reason, times in self.reasons.items())
        size = f"{self.bytes / 1e6:.3f} MB"
        again = f" ({self.refreshed_bytes / 1e6:.3f} MB)" if self.refreshes else ""
        return (
            f"cached casts of weights: {self.weights} ({size}), used {self.hits} times, "
            f"refreshed {self.refreshes} times{again}, not cached {self.refused} times"
            + (f" ({reasons})" if reasons else "")
            + (f"\nproducts with weights by habana_mp's kernels: {self.products}" if self.products else "")
        )


@dataclass(frozen=True)
class ModuleRow:
    """A module that ran: the number of its calls, and their total time from beginning to end."""

    path: str
    kind: str
    calls: int
    seconds: float


@dataclass(frozen=True)
class Edge:
    """Results of one row's calls that went into another row's calls. ``casts``: how many of them had to be cast."""

    source: int
    target: int
    calls: int
    casts: int


@dataclass(frozen=True, repr=False)
class Records:
    """The rows of a report, the busiest first, and what belongs to them."""

    rows: tuple[Row, ...]
    weights: CachedWeights = CachedWeights()
    detail: Detail = "operations"
    modules: tuple[ModuleRow, ...] = ()
    edges: tuple[Edge, ...] = ()
    #: The configuration of convert, None if it is not in force; and the environment of the calls.
    configuration: Mapping[str, Any] | None = field(default=None, hash=False)
    environment: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: The seconds in which calls were watched; None if they were only counted.
    seconds: float | None = field(default=None, compare=False)
    ranks: int = 1
    #: The largest finite values in float16 that the guard saw, as shares of the range, by operation.
    ranges: Mapping[str, float] = field(default_factory=dict, hash=False)
    #: What the guard named: the operation that made a value that is not finite, with its place, and the ranks.
    guarded: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    #: The tensors that left a model as float32 (`results="fp32"`), and their bytes.
    results: tuple[int, int] = (0, 0)
    #: True if this process made it from its own calls.
    is_live: bool = field(default=False, compare=False)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @cached_property
    def size(self) -> tuple[float, bool]:
        """The time of `main_rows` and True. If times are missing or are those of tracing: their calls and False."""
        seconds = sum(row.seconds or 0.0 for row in self.main_rows)
        if seconds and not any(row.phase == "traced" for row in self.rows):
            return seconds, True
        return float(sum(row.calls for row in self.main_rows)), False

    @cached_property
    def main_rows(self) -> list[Row]:
        """All rows but those of optimizers' steps, unless there are no others: what shares are shares of."""
        return [row for row in self.rows if row.reason != "optimizer_step"] or list(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def total(self, name: str) -> Any:
        """Returns the sum over the rows. A sum of times is None if no row has one."""
        values = [getattr(row, name) for row in self.rows if getattr(row, name) is not None]
        return sum(values) if values or not name.endswith("seconds") else None

    def as_dicts(self) -> list[dict[str, Any]]:
        """Returns the rows as plain data."""
        return [row.to_dict() for row in self.rows]
