"""How much two records of a tensor differ, and how much the sums of a call may."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

#: A call, and a tensor, as a record has them.
Row = dict[str, Any]
Tensor = dict[str, Any]

#: The distance between two neighbouring numbers near 1, in powers of two.
_SPACING = {"bfloat16": -7, "float16": -10, "float32": -23, "float64": -52, "complex64": -23, "complex128": -52}

#: Tensors of other sizes are compared by their mean magnitudes, which may differ by this share.
_OF_OTHER_SIZES = 0.5

#: Operations whose result may be small where their inputs are large: what they differ by is a share of the inputs then.
_CANCELLING = frozenset(
    ("add", "add_", "iadd", "radd", "sub", "sub_", "isub", "rsub", "subtract", "addcmul", "addcdiv", "sum", "mean")
)


def spacing(tensor: Tensor) -> float:
    """Returns the share by which neighbouring values of this type differ; zero for whole numbers."""
    return float(2.0 ** _SPACING.get(tensor["dtype"], -math.inf))


def scale_of(row: Row) -> float:
    """Returns the magnitude below which no difference of a call's results counts for more."""
    if row["operation"] not in _CANCELLING:
        return 0.0
    largest = max((one.get("mean", 0.0) for one in row["inputs"]), default=0.0)
    return largest * (math.sqrt(_terms(row)) if row["operation"] == "sum" else 1.0)


def difference(a: Tensor, b: Tensor, scale: float = 0.0) -> float:
    """Returns the largest difference of two results, as a share of their mean magnitude, of the value itself if it is
    larger, or of ``scale``. Infinite where one has a number and the other has none."""
    return _difference(a, b, lambda: max(scale, a["mean"], b["mean"]))


def difference_of_inputs(a: Tensor, b: Tensor) -> float:
    """The same for two inputs, as a share of the magnitude that three quarters of the values exceed: a mask has few
    large values, and the others count."""
    return _difference(a, b, lambda: min(a["mean"], _lower_quartile(a["values"])))


def difference_of_means(a: Tensor, b: Tensor) -> float:
    """Returns the difference of the mean magnitudes of two results, as a share."""
    return _share(a["mean"], b["mean"], 0.0) if "mean" in a and "mean" in b else 0.0


def _lower_quartile(values: list[float]) -> float:
    sizes = sorted(abs(one) for one in values if one)
    return sizes[len(sizes) // 4] if sizes else 0.0


def _difference(a: Tensor, b: Tensor, scale_of_values: Callable[[], float]) -> float:
    if "values" not in a or "values" not in b or a == b:
        return 0.0
    if a["not_finite"] != b["not_finite"]:
        return math.inf
    if a["sizes"] != b["sizes"]:
        return _share(a["mean"], b["mean"], 0.0)
    scale = scale_of_values()
    of_values = (_share(one, other, scale) for one, other in zip(a["values"], b["values"], strict=False))
    return max(_share(a["mean"], b["mean"], scale), _share(a["largest"], b["largest"], scale), *of_values)


def _share(one: float, other: float, scale: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    size = max(scale, abs(one), abs(other))
    return abs(one - other) / size if math.isfinite(one) and math.isfinite(other) else math.inf


class Gradients:
    """The gradients of calls, by module: those of its weights are sums of them, whose terms may cancel each other."""

    def __init__(self) -> None:
        self._of_calls: dict[str, tuple[float, float]] = {}
        self._of_weights = 0.0

    def note(self, row: Row) -> None:
        for one in row["results"]:
            if "mean" in one and one.get("weight"):
                self._of_weights = max(self._of_weights, one["mean"])
            elif "mean" in one and one["sizes"]:
                terms = math.prod(one["sizes"][:-1])
                self._of_calls[row["module"]] = one["mean"] * math.sqrt(terms), terms

    def scale_and_terms(self, row: Row) -> tuple[float, float]:
        """Returns the magnitude of such a sum of terms without an order, and the number of terms. Where the gradients
        are inside of compiled code, it is the magnitude of the largest gradients of weights."""
        return self._of_calls.get(row["module"], (self._of_weights, 1.0))


def bound(a: Row, b: Row, terms: float = 1.0) -> float:
    """Returns the difference that two kernels may make of the same inputs: one rounding of the result, and those of its
    sums in float32, in another order."""
    if any(one["sizes"] != other["sizes"] for one, other in zip(a["results"], b["results"], strict=False)):
        return _OF_OTHER_SIZES
    return _rounding(a, b) + bound_of_sums(a, b, terms)


def _rounding(a: Row, b: Row) -> float:
    """Returns the difference of one rounding of the results. In another precision it is that of the finer one: the
    decision makes the difference, and not the kernel."""
    pairs = zip(a["results"], b["results"], strict=False)
    return max((min(spacing(one), spacing(other)) for one, other in pairs), default=0.0)


def bound_of_means(a: Row, b: Row) -> float:
    """Returns the difference that they may make of the mean magnitude: most roundings cancel each other."""
    results = [*a["results"], *b["results"]]
    count = min((math.prod(one["sizes"]) for one in results), default=1)
    return 4 * _rounding(a, b) / math.sqrt(max(1, count)) + bound_of_sums(a, b)


def bound_of_sums(a: Row, b: Row, terms: float = 1.0) -> float:
    """Returns the difference of sums in float32, or in float64, in another order."""
    return 4 * min(_rounding(a, b), 2.0**-23) * math.sqrt(max(terms, _terms(a), _terms(b)))


def _terms(row: Row) -> float:
    """Returns how many terms the sums of a call have: those of a row of an input or of a weight, or all values that one
    value of the result is made of."""
    most = 1.0
    values = max((math.prod(one["sizes"]) for one in row["results"]), default=1)
    for one in row["inputs"]:
        sizes = one["sizes"]
        if sizes:
            most = max(most, sizes[-1], math.prod(sizes) / max(1, values))
            most = max(most, math.prod(sizes[1:]) if len(sizes) in (4, 5) else 1)
    return most
