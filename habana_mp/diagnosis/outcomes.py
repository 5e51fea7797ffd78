"""The outcome of a run of a step: the loss, the gradients, the changed state, and the returned values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from habana_mp.diagnosis.exact import LOWER, apart, tensors_of
from habana_mp.diagnosis.measuring import sample

#: This many values of a gradient, a state or a returned value are compared.
_SAMPLES = 1 << 16

#: An error of a gradient, a value, a state or the loss below this share is allowed, however small the model's own noise
#: is.
_OF_GRADIENT = 0.17
_OF_VALUE = 0.05
_OF_STATE = 0.1
_OF_LOSS = 0.015
#: A gradient counts as small if it is a smaller part of all gradients.
_LEAST_PART = 0.02
#: A deviation of this many times the noise is allowed.
_TIMES_NOISE = 6.0
#: Above the first number, only deviations of the second number of times the noise are allowed.
_MOST_FOR_NOISE = 0.3
_LEAST_TIMES_NOISE = 3.0

#: The largest deviation of a finite value. That of a value that is not finite is infinite, and counts as this one where
#: deviations are subtracted.
WORST = 1e6


@dataclass(eq=False)
class Outcome:
    """The outcome of a run, as samples."""

    loss: float | None = None
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    #: The changes of the state. For whole numbers, the new values.
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    returned: dict[str, torch.Tensor] = field(default_factory=dict)

    #: The change of the loss if the weights are rounded to a precision, as if each rounding had a random sign.
    roundings: dict[torch.dtype, float] = field(default_factory=dict)

    @property
    def is_finite(self) -> bool:
        return self.loss is None or math.isfinite(self.loss)

    def add_gradient(self, name: str, weight: torch.Tensor) -> None:
        """Adds the gradient of a weight."""
        gradient = weight.grad
        if gradient is not None and gradient.is_sparse:
            gradient = gradient.coalesce().values()
        values = None if gradient is None else sample(gradient, _SAMPLES)
        if values is None or gradient is None:
            return
        self.gradients[name] = values
        taken = sample(weight, _SAMPLES)
        if taken is None or taken.shape != values.shape:
            return
        for to in LOWER:
            change = float(torch.linalg.vector_norm(values * (taken.to(to).float() - taken)))
            if math.isfinite(change):
                square = change**2 * gradient.numel() / max(1, values.numel())
                self.roundings[to] = (self.roundings.get(to, 0.0) ** 2 + square) ** 0.5

    def add_state(self, name: str, before: torch.Tensor, after: torch.Tensor) -> None:
        if before.shape != after.shape or (before.is_floating_point() and torch.equal(before, after)):
            return
        first, last = sample(before, _SAMPLES), sample(after, _SAMPLES)
        if first is not None and last is not None:
            self.state[name] = last - first if first.is_floating_point() else last

    def add_returned(self, values: Any) -> None:
        for place, one in enumerate(tensors_of(values)):
            taken = sample(one, _SAMPLES)
            if taken is not None:
                self.returned[f"returned value {place}" if place else "the returned value"] = taken


#: The deviation of each compared value, by its name in words.
Deviations = dict[str, float]


def deviations(run: Outcome, exact: Outcome) -> Deviations:
    """Returns the deviations of a run from the run in float32, each relative to the size of the value."""
    with apart():
        return _deviations(run, exact)


def _deviations(run: Outcome, exact: Outcome) -> Deviations:
    found: Deviations = {}
    if exact.loss is not None and run.loss is not None:
        found["the loss"] = _limited(abs(run.loss - exact.loss) / max(abs(exact.loss), 1e-30))
    least = _least_size(exact.gradients)
    for name in exact.gradients:
        names = _with_whole(name, "bias", "weight", exact.gradients)
        found[f"the gradient of {name}"] = _of_group(run.gradients, exact.gradients, names, least)
    for name in exact.state:
        names = _with_whole(name, "running_mean", "running_var", exact.state)
        found[f"the new value of {name}"] = _of_group(run.state, exact.state, names, 0.0)
    for name, value in exact.returned.items():
        found[name] = relative_error(run.returned.get(name), value)
    return found


def _with_whole(name: str, part: str, whole: str, known: dict[str, torch.Tensor]) -> list[str]:
    """Returns the names of the values that are compared together. A bias is compared together with its weight, and a
    mean with its variance: the gradient of a bias is a sum over the batch, whose terms may cancel each other, and so
    may those of a mean. Compared with the weight or the variance, the error of such a sum is harmless."""
    before, _, last = name.rpartition(".")
    other = f"{before}.{last.replace(part, whole)}"
    return [name, other] if other != name and other in known else [name]


def _of_group(
    run: dict[str, torch.Tensor], exact: dict[str, torch.Tensor], names: Sequence[str], least: float
) -> float:
    if len(names) == 1:
        return relative_error(run.get(names[0]), exact[names[0]], least)
    mine = torch.cat([run[name].flatten() for name in names]) if all(name in run for name in names) else None
    return relative_error(mine, torch.cat([exact[name].flatten() for name in names]), least)


def _least_size(gradients: dict[str, torch.Tensor]) -> float:
    """Returns the size below which a gradient counts as small, so that its relative error matters less."""
    whole = math.sqrt(sum(float(torch.linalg.vector_norm(one)) ** 2 for one in gradients.values()))
    return _LEAST_PART * whole * min(1.0, math.sqrt(100 / max(1, len(gradients))))


def relative_error(value: torch.Tensor | None, exact: torch.Tensor, least: float = 0.0) -> float:
    """Returns the error of a value relative to the size of the exact one, but at least to the size ``least``. For whole
    numbers, returns the share of those that differ."""
    if value is not None and value.shape != exact.shape:
        return 1.0
    if value is None:  # the run gave no gradient, or changed no state
        value = torch.zeros_like(exact)
    if not exact.is_floating_point():
        return float((value != exact).float().mean()) if exact.numel() else 0.0
    known = torch.isfinite(exact)
    size = float(torch.linalg.vector_norm(exact[known]))
    error = float(torch.linalg.vector_norm((value - exact)[known]))
    if error == 0:
        return 0.0
    return _limited(error / max(size, least, 1e-30))


def _limited(deviation: float) -> float:
    return min(deviation, WORST) if math.isfinite(deviation) else math.inf


def decrease(before: float, after: float) -> float:
    """Returns the difference of two deviations."""
    return min(before, WORST) - min(after, WORST)


class Tolerances:
    """The deviations from the run in float32 that a healthy run may have."""

    def __init__(self, exact: Outcome, noisy: Sequence[Outcome], to: torch.dtype | None) -> None:
        """``noisy``: outcomes with weights that are disturbed by one rounding, to the precision ``to``. If ``to`` is
        None, no weight is rounded."""
        self._noise: Deviations = {}
        for one in noisy:
            for what, deviation in deviations(one, exact).items():
                self._noise[what] = max(self._noise.get(what, 0.0), deviation)
        if exact.loss and to is not None:
            of_rounding = exact.roundings.get(to, 0.0) / abs(exact.loss)
            self._noise["the loss"] = max(self._noise.get("the loss", 0.0), of_rounding)

    def of(self, what: str) -> float:
        least = _OF_VALUE
        if what == "the loss":
            least = _OF_LOSS
        elif what.startswith("the gradient of "):
            least = _OF_GRADIENT
        elif what.startswith("the new value of "):
            least = _OF_STATE
        noise = self._noise.get(what, 0.0)
        return max(least, min(_TIMES_NOISE * noise, _MOST_FOR_NOISE), _LEAST_TIMES_NOISE * noise)

    def excess(self, found: Deviations) -> Deviations:
        """Returns each deviation as a multiple of the allowed deviation, or infinity if the value is not finite. If the
        noise makes a value that is not finite, any deviation is allowed."""
        allowed = {what: self.of(what) for what in found}
        return {what: _limited(one / allowed[what]) if allowed[what] < math.inf else 0.0 for what, one in found.items()}


def worst(excess: Deviations) -> float:
    return max(excess.values(), default=0.0)
