"""The places where operations are called, and their measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from habana_mp.reporting import origins
from habana_mp.reporting.records import short_place


class Line(NamedTuple):
    """An operation at one line of code, in any module."""

    operation: str
    file: str
    line: int

    @property
    def place(self) -> str:
        return short_place(self.file, self.line)


@dataclass(eq=False)
class Site:
    """An operation at one line in one module, and the sums of the measurements at its calls."""

    where: Line
    #: The path of the module, as the report shows it.
    module: str
    calls: int = 0
    dtypes: set[str] = field(default_factory=set)
    #: The sums of the squares of the local errors and of the exact values, and the largest local error.
    error: float = 0.0
    size: float = 0.0
    largest_error: float = 0.0
    #: The sums of the squares of the inherited errors and of the exact values. An inherited error is the difference
    #: between the call in float32 with the step's inputs, and the same call in the step in float32.
    inherited: float = 0.0
    inherited_of: float = 0.0
    #: The number of values that are not floats, and the number of these that differ.
    counted: int = 0
    changed: int = 0
    #: The sum of the products of local error and gradient of the loss, and the sum of the squares of these products.
    effect: float = 0.0
    effect_squares: float = 0.0
    has_gradient: bool = False
    #: The largest relative error that the backward of a call adds to its gradients.
    gradient_error: float = 0.0
    #: The smallest and the largest magnitude of the inputs, without zeros.
    smallest_input: float = float("inf")
    largest_input: float = 0.0
    #: Results that are zero where the exact value is not, and zeros among the gradients of results.
    underflows: int = 0
    values: int = 0
    zero_gradients: int = 0
    gradients: int = 0
    #: The number of the first call that made a value that is not finite from finite inputs, counted over all calls.
    born: int | None = None
    #: "overflow": the value is finite in float32. "not finite": the value is not finite in float32 either.
    birth: str = ""
    #: True if a value that differs goes into a comparison, an index, or an operation whose gradient is zero.
    decides: bool = False

    @property
    def local_error(self) -> float:
        """The size of the local errors, relative to the size of the exact values."""
        return _ratio(self.error, self.size)

    @property
    def inherited_error(self) -> float:
        return _ratio(self.inherited, self.inherited_of)


def _ratio(error: float, size: float) -> float:
    if error == 0:
        return 0.0
    return float("inf") if size == 0 else (error / size) ** 0.5


class Locator:
    """Finds the line of the running call, and the path of its module, which is made once for the same modules."""

    def __init__(self) -> None:
        #: The path for the running modules. The modules are held so that no other object gets the same identity.
        self._paths: dict[tuple[int, ...], tuple[str, tuple[Any, ...]]] = {}

    def here(self) -> tuple[str, str, int]:
        """Returns the path of the innermost module, and the file and line of the call."""
        origin = origins.here()
        key = tuple(map(id, origin.modules))
        if key not in self._paths:
            self._paths[key] = origin.module, origin.modules
        return self._paths[key][0], origin.file, origin.line


class Sites:
    """All sites of a run, by place."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str, int], Site] = {}

    def at(self, operation: str, place: tuple[str, str, int]) -> Site:
        key = (operation, *place)
        known = self._known.get(key)
        if known is None:
            module, file, line = place
            known = self._known[key] = Site(Line(operation, file, line), module)
        return known

    def __iter__(self) -> Iterator[Site]:
        return iter(self._known.values())
