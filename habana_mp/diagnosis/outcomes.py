"""The way in which a step runs, what such a run gave, and how much two runs may deviate from each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from habana_mp.diagnosis.exact import apart
from habana_mp.diagnosis.sites import PRODUCTS, Line, Place, Samples, Site, sample, size_of
from habana_mp.patches.torch.compiled_runs import Lines

#: This many values of a gradient, a state or a returned value are compared.
_SAMPLES = 1 << 16

_GRADIENT, _STATE = "the gradient of ", "the new value of "

#: An error of the loss, a gradient, a state or another value below this share is allowed, however small the model's own
#: noise is. '' matches all names, so it comes last.
_ALLOWED = {"the loss": 0.015, _GRADIENT: 0.17, _STATE: 0.1, "": 0.05}
#: A gradient counts as small if it is a smaller part of all gradients. Each of many gradients is a small part, so among
#: more than this number it counts as small below the same multiple (a fifth) of their root mean square.
_LEAST_PART, _MANY = 0.02, 100
#: The noise allows six times its size up to 0.3, and three times its size in any case.
_NOISE_TIMES, _UP_TO, _NOISE_TIMES_ALWAYS = 6.0, 0.3, 3.0

#: The largest deviation of a finite value. That of a value that is not finite is infinite, and counts as this one where
#: deviations are subtracted.
WORST = 1e6


@dataclass(frozen=True)
class RunMode:
    """The way to run a step: in mixed precision with a comparison to float32, in mixed precision with compiled
    functions, or in float32."""

    #: The results in float32. If they are given, the step runs in mixed precision beside them, and each lowered call is
    #: also made in float32.
    beside: Samples | None = None
    #: The lines that run in float32, or with `compiled` those whose results compiled code rounds. None: all lines.
    lines: frozenset[Line] | None = None
    #: The lines whose products have operands in lower precision, and a float32 result.
    sums: frozenset[Line] = frozenset()
    #: The weights at these lines are disturbed by their rounding, times `sign`.
    disturbed: frozenset[Line] = frozenset()
    sign: int = 1
    #: The lower precision of `sums` and `disturbed`.
    lower: torch.dtype = torch.bfloat16
    #: Compiled functions run compiled, and round the results of `lines` as eager code does. Nothing is in float32.
    compiled: bool = False


@dataclass(eq=False)
class Run:
    """The result of a run of a step."""

    loss: float | None = None
    #: Samples of the gradients, of the changes of the state (for whole numbers, the new values), and of the returned
    #: values, by their names in words.
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    #: What was measured beside float32, by place. Solutions of linear systems have places without values.
    measured: dict[Place, Site] = field(default_factory=dict)
    #: Samples of the results of calls in float32.
    samples: Samples = field(default_factory=dict)
    #: The lines whose results compiled code may keep in float32.
    unrounded: Lines = field(default_factory=set)

    @property
    def has_finite_loss(self) -> bool:
        return self.loss is None or math.isfinite(self.loss)

    @property
    def sites(self) -> list[Site]:
        return [one for one in self.measured.values() if one.values or one.counted]

    def leaves_unrounded(self, site: Site) -> bool:
        """True if compiled code may keep the results of a site in float32. Functions of libraries compute products."""
        is_product = site.where.operation in PRODUCTS
        return bool(site.dtypes) and not is_product and (site.where.file, site.where.line) in self.unrounded

    def add_gradient(self, name: str, gradient: torch.Tensor | None) -> None:
        if gradient is not None:
            self._add(_GRADIENT + name, gradient.coalesce().values() if gradient.is_sparse else gradient)

    def add_state(self, name: str, before: torch.Tensor, after: torch.Tensor) -> None:
        # A change of zero has no size to compare with.
        if before.shape == after.shape and not (before.is_floating_point() and torch.equal(before, after)):
            first, last = sample(before, _SAMPLES), sample(after, _SAMPLES)
            if first is not None and last is not None:
                self.values[_STATE + name] = last - first if first.is_floating_point() else last

    def add_returned(self, tensors: Iterable[torch.Tensor]) -> None:
        for place, one in enumerate(tensors):
            self._add(f"returned value {place}" if place else "the returned value", one)

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        values = sample(tensor, _SAMPLES)
        if values is not None:
            self.values[name] = values


#: The deviation of each compared value, by its name in words.
Deviations = dict[str, float]


def deviations(run: Run, exact: Run) -> Deviations:
    """Returns the deviations of a run from the run in float32, each relative to the size of the value."""
    found: Deviations = {}
    if exact.loss is not None and run.loss is not None:
        found["the loss"] = _limited(abs(run.loss - exact.loss) / max(abs(exact.loss), 1e-30))
    with apart():
        gradients = [one for name, one in exact.values.items() if name.startswith(_GRADIENT)]
        whole = math.sqrt(sum(size_of(one) ** 2 for one in gradients))
        # Below this size a gradient counts as small, so its relative error matters less.
        small = _LEAST_PART * whole * math.sqrt(_MANY / max(_MANY, len(gradients)))
        for name in exact.values:
            names = _compared_together(name, exact.values)
            mine = [run.values[one] for one in names if one in run.values]
            found[name] = _relative_error(
                torch.cat(mine) if len(mine) == len(names) else None,
                torch.cat([exact.values[one] for one in names]),
                small if name.startswith(_GRADIENT) else 0.0,
            )
    return found


def _compared_together(name: str, known: dict[str, torch.Tensor]) -> list[str]:
    """Returns the names of the values that are compared together. A bias is compared together with its weight, and a
    mean with its variance: the gradient of a bias is a sum over the batch, whose terms may cancel each other, and so
    may those of a mean. Compared with the weight or the variance, the error of such a sum is harmless."""
    before, _, last = name.rpartition(".")
    other = f"{before}.{last.replace('bias', 'weight').replace('running_mean', 'running_var')}"
    return [name, other] if other != name and other in known else [name]


def _relative_error(value: torch.Tensor | None, exact: torch.Tensor, least: float) -> float:
    """Returns the error of a value relative to the size of the exact one, but at least to the size ``least``. For whole
    numbers, returns the share of those that differ."""
    if value is None:  # the run gave no gradient, or changed no state
        value = torch.zeros_like(exact)
    if value.shape != exact.shape:
        return 1.0
    if not exact.is_floating_point():
        return float((value != exact).float().mean()) if exact.numel() else 0.0
    known = torch.isfinite(exact)
    size, error = size_of(exact[known]), size_of((value - exact)[known])
    return _limited(error / max(size, least, 1e-30))


def _limited(deviation: float) -> float:
    return min(deviation, WORST) if math.isfinite(deviation) else math.inf


def decrease(before: float, after: float) -> float:
    """Returns the difference of two deviations."""
    return min(before, WORST) - min(after, WORST)


class Tolerances:
    """The deviations from the run in float32 that a healthy run may have."""

    def __init__(self, noise: Sequence[Deviations] = ()) -> None:
        """``noise``: the deviations in float32 with weights that are disturbed by one rounding."""
        self._noise = noise

    def of(self, what: str) -> float:
        least = next(share for words, share in _ALLOWED.items() if what.startswith(words))
        noise = max((one.get(what, 0.0) for one in self._noise), default=0.0)
        return max(least, min(_NOISE_TIMES * noise, _UP_TO), _NOISE_TIMES_ALWAYS * noise)

    def excess(self, found: Deviations) -> Deviations:
        """Returns each deviation as a multiple of the allowed deviation, or infinity if the value is not finite. If the
        noise makes a value that is not finite, any deviation is allowed."""
        allowed = {what: self.of(what) for what in found}
        return {what: _limited(one / allowed[what]) if allowed[what] < math.inf else 0.0 for what, one in found.items()}


def worst(excess: Deviations) -> float:
    return max(excess.values(), default=0.0)
