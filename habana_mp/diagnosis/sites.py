"""The places where operations are called, and what is measured there: a lowered call beside that in float32."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from habana_mp import ops
from habana_mp.diagnosis.exact import LOWER, is_lower
from habana_mp.reporting import origins
from habana_mp.reporting.judging import Worst, worst_of
from habana_mp.reporting.records import short_place

#: Products. Libraries compute them in compiled code too, so their results are always rounded.
PRODUCTS = frozenset(
    name for row in (*ops.products.ROWS, *ops.convolutions.ROWS, *ops.recurrent.ROWS) for name in row.names.split()
)

#: Two runs are compared by at most this many values of each result.
_SAMPLES = 128


class Line(NamedTuple):
    """An operation at one line of code, in any module."""

    operation: str
    file: str
    line: int

    @property
    def place(self) -> str:
        return short_place(self.file, self.line)


#: A line, and the path of the innermost module that runs, as the report shows it.
Place = tuple[Line, str]

#: Samples of results, by place and number.
Samples = dict[tuple[Place, int], torch.Tensor]


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
    #: The sum of the products of local error and gradient of the loss.
    effect: float = 0.0
    has_gradient: bool = False
    #: The largest relative error that the backward of a call adds to its gradients.
    gradient_error: float = 0.0
    #: The smallest and the largest magnitude of samples of the first call's inputs, without zeros.
    smallest_input: float = float("inf")
    largest_input: float = 0.0
    #: Results that are zero where the exact value is not, and zeros among the gradients of results. Counted in float16
    #: only. `values`, `gradients`: the number of all of them, in any precision.
    underflows: int = 0
    values: int = 0
    zero_gradients: int = 0
    gradients: int = 0
    #: The number of the first call that made a value that is not finite from finite inputs, counted over all calls.
    first_not_finite: int | None = None
    #: "overflow": the value is finite in float32. "not finite": the value is not finite in float32 either.
    not_finite_kind: str = ""

    @property
    def local_error(self) -> float:
        """The size of the local errors, relative to the size of the exact values."""
        return _ratio(self.error, self.size)

    @property
    def inherited_error(self) -> float:
        return _ratio(self.inherited, self.inherited_of)

    def compare(
        self, low: torch.Tensor, exact: torch.Tensor, inputs: list[torch.Tensor], number: int
    ) -> torch.Tensor | None:
        """Adds a lowered result and the exact one to the sums. Returns the local error, or None if there is none.
        ``number``: that of the call."""
        error = low - exact
        size, wrong = size_of(exact), size_of(error)
        most = 0.99 * torch.finfo(low.dtype).max  # larger values are masks, which would hide errors
        self.values += low.numel()
        self.dtypes.add(str(low.dtype).removeprefix("torch."))
        if not (wrong < most and size < most):  # also if they are not numbers
            self._note_not_finite(low, exact, inputs, number)
            is_known = torch.isfinite(error) & (exact.abs() < most)
            error = torch.where(is_known, error, 0.0)
            size, wrong = size_of(torch.where(is_known, exact, 0.0)), size_of(error)
        self.size += size**2
        if wrong == 0:
            return None
        self.error += wrong**2
        self.largest_error = max(self.largest_error, float(torch.linalg.vector_norm(error, float("inf"))))
        if low.dtype == torch.float16:
            self.underflows += int(((low == 0) & (exact != 0)).sum())
        return error

    def _note_not_finite(self, low: torch.Tensor, exact: torch.Tensor, inputs: list[torch.Tensor], number: int) -> None:
        """Stores that the call made a value that is not finite, if its inputs are finite."""
        if self.first_not_finite is not None or worst_of(inputs) is not Worst.NUMBERS:
            return
        bad = ~torch.isfinite(low)
        # Infinities of the code itself, as in a mask, are the same in float32.
        if bool((bad & (low != exact)).any()):
            self.first_not_finite = number
            self.not_finite_kind = "overflow" if bool(torch.isfinite(exact[bad]).any()) else "not finite"

    def compare_others(self, low: torch.Tensor, exact: torch.Tensor) -> None:
        """Adds a result that does not consist of floats to the counts."""
        if low.shape == exact.shape and low.dtype == exact.dtype:
            self.counted += low.numel()
            self.changed += int((low != exact).sum())

    def compare_inherited(self, exact: torch.Tensor, reference: torch.Tensor | None) -> None:
        """Adds a result in float32 of the step's inputs, beside samples of the result in the step in float32."""
        if reference is None:
            return
        values = sample(exact)
        if values is not None and values.shape == reference.shape and values.is_floating_point():
            self.inherited += size_of(values - reference) ** 2
            self.inherited_of += size_of(reference) ** 2

    def note_inputs(self, inputs: list[torch.Tensor]) -> None:
        """Stores the range of the inputs, from samples."""
        for one in inputs:
            values = sample(one)
            if values is None:
                continue
            sizes = values.abs()
            sizes = sizes[(sizes > 0) & torch.isfinite(sizes)]
            if sizes.numel():
                self.smallest_input = min(self.smallest_input, float(sizes.min()))
                self.largest_input = max(self.largest_input, float(sizes.max()))


def _ratio(error: float, size: float) -> float:
    if error == 0:
        return 0.0
    return float("inf") if size == 0 else (error / size) ** 0.5


def size_of(values: torch.Tensor) -> float:
    """Returns the norm of the values, in float64 where the device has it: squares of large values overflow float32."""
    has_float64 = values.device.type in ("cpu", "cuda")
    dtype = torch.promote_types(values.dtype, torch.float64) if has_float64 else None
    return float(torch.linalg.vector_norm(values, dtype=dtype))


def sample(tensor: torch.Tensor, most: int = _SAMPLES) -> torch.Tensor | None:
    """Returns a copy of values that are spread over the whole tensor, in an order that does not depend on its layout.
    Returns None if they cannot be read one by one."""
    try:
        flat = tensor.detach().reshape(-1)
        step = -(-flat.numel() // most)
        step += 1 - step % 2  # an even step could take the same column of each row
        chosen = flat[::step]
        return chosen.float().clone() if chosen.is_floating_point() else chosen.clone()
    except (RuntimeError, NotImplementedError, TypeError):  # a class of tensors without these operations
        return None


def is_comparable(low: torch.Tensor, exact: torch.Tensor) -> bool:
    return is_lower(low) and exact.is_floating_point() and exact.dtype not in LOWER and low.shape == exact.shape


class Locator:
    """Finds the line of the running call, and the path of its module, which is made once for the same modules."""

    def __init__(self) -> None:
        #: The path for the running modules. The modules are held so that no other object gets the same identity.
        self._paths: dict[tuple[int, ...], tuple[str, tuple[Any, ...]]] = {}

    def here(self, operation: str) -> Place:
        origin = origins.here()
        key = tuple(map(id, origin.modules))
        if key not in self._paths:
            self._paths[key] = origin.module, origin.modules
        return Line(operation, origin.file, origin.line), self._paths[key][0]
