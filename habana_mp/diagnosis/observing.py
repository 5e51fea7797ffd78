"""The observers of a step: they get each call while the step runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from habana_mp import _core, ops
from habana_mp.diagnosis.exact import (
    Arguments,
    RandomState,
    apart,
    as_it_is,
    in_float32,
    is_lower,
    may_be_random,
    repeatable,
    with_rounded_operands,
    with_tensors,
)
from habana_mp.diagnosis.outcomes import Run, RunMode
from habana_mp.diagnosis.sites import PRODUCTS, Line, Locator, Place, Site, is_comparable, sample, size_of
from habana_mp.ops.observed import SOLVES
from habana_mp.patches.installation import installation
from habana_mp.patches.tools.casts_off import casts_off
from habana_mp.patches.tools.compiled_functions import run_by_python
from habana_mp.patches.torch.compiled_runs import compiled_anew
from habana_mp.reporting.judging import tensors_in

#: The errors of a call that cannot be made again in float32.
_NOT_REPEATABLE = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)

#: Conversions that the user asked for.
_CONVERSIONS = frozenset(("to", "type", "type_as", "bfloat16", "half", "float", "double", "copy_", "_to_copy"))


class Call(NamedTuple):
    """A call, and the floating tensors among its arguments."""

    called: Any
    operation: str
    arguments: Arguments
    inputs: list[torch.Tensor]


class Observer:
    """Makes calls unchanged."""

    #: False if modules may have no hooks while the step runs.
    hooks_modules = True

    def __init__(self, mode: RunMode, locator: Locator) -> None:
        self._mode, self._locator = mode, locator
        self._results: Counter[Place] = Counter()
        #: The run, which gets what is measured.
        self.run = Run()
        self.is_on = True
        #: Called with each tensor that a call uses and that gets a gradient of its own, and with True if the call
        #: writes into its first argument.
        self.leaf_is_used: Callable[[torch.Tensor, bool], None] = lambda *_: None
        #: True for the threads of the step.
        self.belongs: Callable[[], bool] = lambda: True

    @contextmanager
    def observing(self) -> Iterator[None]:
        """A block in which this observer gets all calls, except for those under torch.func and in torch's modes."""
        try:
            installation.set_observer("diagnosis", self._answer, is_on=True)
            yield
        finally:
            installation.set_observer("diagnosis", self._answer, is_on=False)

    @run_by_python
    def _answer(self, called: Any, operation: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if not self.is_on or not self.belongs():
            return _core.make_observed_call()
        given = tensors_in((arguments, keywords))
        for one in given:
            if one.requires_grad and one.is_leaf:
                self.leaf_is_used(one, ops.is_in_place(operation))
        inputs = [one for one in given if one.is_floating_point()]
        has_own = keywords.get("dtype") is not None or keywords.get("out") is not None
        if not inputs or has_own or operation in _CONVERSIONS:
            return self.make_unchanged()
        return self.observe(Call(called, operation, (arguments, keywords), inputs))

    def make_unchanged(self) -> Any:
        """Makes the current call with its own arguments."""
        return _core.make_observed_call()

    def observe(self, call: Call) -> Any:
        """Returns the result of a call."""
        raise NotImplementedError

    def numbered(self, place: Place, results: list[torch.Tensor]) -> list[tuple[tuple[Place, int], torch.Tensor]]:
        """Returns results with the keys of their samples: the place, and their number there."""
        first = self._results[place]
        self._results[place] += len(results)
        return [((place, number), one) for number, one in enumerate(results, first)]


class InFloat32(Observer):
    """Makes calls in float32, either all of them or those at some lines. If it makes all, it takes samples of the
    results."""

    def __init__(self, mode: RunMode, locator: Locator) -> None:
        super().__init__(mode, locator)
        self._is_whole = mode.lines is None
        self._lines = (mode.lines or frozenset()) | mode.sums
        self._operations = {one.operation for one in self._lines}

    @contextmanager
    def observing(self) -> Iterator[None]:
        # Steps that are skipped run unchanged. In this case casts are switched off for each single call, so calls under
        # torch.func, which are not observed, are lowered.
        with casts_off() if self._is_whole and self.is_on else nullcontext(), super().observing():
            yield

    def make_unchanged(self) -> Any:
        with casts_off() if self._is_whole else nullcontext():
            return super().make_unchanged()

    def observe(self, call: Call) -> Any:
        operation, mode = call.operation, self._mode
        if ops.is_in_place(operation) or not (self._is_whole or operation in self._operations):
            return self.make_unchanged()
        place = self._locator.here(operation)
        line = place[0]
        if not (self._is_whole or line in self._lines):
            return self.make_unchanged()
        other = partial(_disturbed, to=mode.lower, sign=mode.sign) if line in mode.disturbed else as_it_is
        with casts_off():
            given = call.arguments
            if line in mode.sums:
                given = with_rounded_operands(operation, given, mode.lower)
            arguments, keywords = in_float32(given, other)
            try:
                result = call.called(*arguments, **keywords)
            except _NOT_REPEATABLE:
                result = _core.make_observed_call()
            if self._is_whole:
                with torch.no_grad():
                    for key, one in self.numbered(place, tensors_in(result)):
                        values = sample(one)
                        if values is not None:
                            self.run.samples[key] = values
        return result


class Compiled(Observer):
    """Gets no calls: compiled functions run compiled. Hooks on modules would change what is compiled."""

    hooks_modules = False

    @contextmanager
    def observing(self) -> Iterator[None]:
        lines = self._mode.lines
        with compiled_anew(self.run.unrounded, None if lines is None else {(one.file, one.line) for one in lines}):
            yield


def _disturbed(tensor: torch.Tensor, to: torch.dtype, sign: int) -> torch.Tensor:
    """Returns a weight or a view of a weight disturbed by its rounding, with its own gradient. Returns any other tensor
    unchanged."""
    base = tensor if tensor._base is None else tensor._base
    if not isinstance(base, torch.nn.Parameter) or tensor.dtype != torch.float32:
        return tensor
    with torch.no_grad():
        error = sign * (tensor.to(to).float() - tensor)
    return tensor + torch.nan_to_num(error, posinf=0.0, neginf=0.0)


class Measuring(Observer):
    """Makes calls unchanged, and makes each lowered call again in float32."""

    def __init__(self, mode: RunMode, locator: Locator) -> None:
        super().__init__(mode, locator)
        #: Results of the same step in float32.
        self._exact = mode.beside or {}
        self._made = 0
        #: The lines for which the backward of one call is followed already.
        self._followed: set[Line] = set()

    def observe(self, call: Call) -> Any:
        self._made += 1
        place = self._locator.here(call.operation)
        if SOLVES.search(call.operation):
            self.run.measured.setdefault(place, Site(*place))
        writes = ops.is_in_place(call.operation)
        arguments, keywords = call.arguments
        if writes and arguments and isinstance(arguments[0], torch.Tensor) and is_lower(arguments[0]):
            with apart():
                call = call._replace(arguments=((arguments[0].detach().float(), *arguments[1:]), keywords))
        before = RandomState() if may_be_random(call.operation) else None
        result = _core.make_observed_call()
        results = tensors_in(result)
        numbered = self.numbered(place, results)
        is_input = not writes and any(one is given for one in results for given in call.inputs)
        if not is_input and any(is_lower(one) or not one.is_floating_point() for one in results):
            with apart():
                self._measure(call, place, numbered, before)
        return result

    def _measure(
        self,
        call: Call,
        place: Place,
        results: list[tuple[tuple[Place, int], torch.Tensor]],
        before: RandomState | None,
    ) -> None:
        """Makes the call again in float32, and compares the results."""
        exact = _made_again(call, before)
        if len(exact) != len(results):
            return
        site = self.run.measured.setdefault(place, Site(*place))
        site.calls += 1
        if site.calls == 1:
            site.note_inputs(call.inputs)
        for (key, low), one in zip(results, exact, strict=True):
            site.compare_inherited(one, self._exact.get(key))
            if is_comparable(low, one):
                if before is not None and not _same_zeros(low, one):
                    continue  # the random numbers differ
                error = site.compare(low, one, call.inputs, self._made)
                if error is not None and low.requires_grad and low.grad_fn is not None:
                    self._follow(site, call, low, error)
            elif not low.is_floating_point():
                site.compare_others(low, one)

    def _follow(self, site: Site, call: Call, low: torch.Tensor, error: torch.Tensor) -> None:
        """Registers a hook that gets the gradient of the loss with respect to a result."""
        operation = call.operation
        # The backward of products makes products too, whose error is one rounding. Repeating it would take long.
        skips = may_be_random(operation) or operation in PRODUCTS or ops.is_in_place(operation)
        is_followed = skips or site.where in self._followed
        self._followed.add(site.where)
        again = None if is_followed else partial(_gradient_error, call.called, repeatable(operation, call.arguments))
        kept = error.to(torch.bfloat16)  # precise enough, and no larger than the result
        hook = partial(_add_gradient, site, kept, again)
        low.register_hook(hook)  # type: ignore[no-untyped-call]  # torch's has no types


def _made_again(call: Call, before: RandomState | None) -> list[torch.Tensor]:
    """Returns the results of the call in float32, with the random numbers that it drew. Returns none if it cannot be
    made in float32."""
    after = None if before is None else RandomState()
    try:
        if before is not None:
            before.restore()
        arguments, keywords = in_float32(repeatable(call.operation, call.arguments))
        return tensors_in(call.called(*arguments, **keywords))
    except _NOT_REPEATABLE:
        return []
    finally:
        if after is not None:
            after.restore()


def _same_zeros(low: torch.Tensor, exact: torch.Tensor) -> bool:
    """True if nearly the same values are zero, which shows that the same random numbers were drawn."""
    differ = int(((low == 0) != (exact == 0)).sum())
    return differ <= 0.02 * low.numel()


def _add_gradient(
    site: Site, error: torch.Tensor, again: Callable[[torch.Tensor], float] | None, gradient: torch.Tensor | None
) -> None:
    def add(gradient: torch.Tensor) -> None:
        with apart():
            site.has_gradient = True
            site.effect += float((gradient * error).sum(dtype=torch.float32))
            site.gradients += gradient.numel()
            if gradient.dtype == torch.float16:
                site.zero_gradients += int((gradient == 0).sum())
            if again is not None:
                site.gradient_error = max(site.gradient_error, again(gradient))

    if gradient is not None:  # an autograd.Function may return none
        _core.call_unseen(partial(add, gradient))


def _gradient_error(called: Any, arguments: Arguments, gradient: torch.Tensor) -> float:
    """Makes the backward of a call in float32 and in the precision of its result. Returns the largest relative error
    of the gradients of the inputs; zero if it cannot be found."""
    try:
        exact = _gradients(called, arguments, in_float32, gradient.float())
        low = _gradients(
            called,
            arguments,
            partial(with_tensors, lambda one: one.to(gradient.dtype) if one.is_floating_point() else one),
            gradient,
        )
    except _NOT_REPEATABLE:
        return 0.0
    worst = 0.0
    for one, other in zip(low, exact, strict=True):
        if one is None or other is None:
            continue
        size, error = size_of(other), size_of(one.float() - other)
        if size > 0 and math.isfinite(error / size):
            worst = max(worst, error / size)
    return worst


def _gradients(
    called: Any, arguments: Arguments, cast: Callable[[torch.Tensor], Any], gradient: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    leaves: list[torch.Tensor] = []

    def leaf(one: torch.Tensor) -> Any:
        made = cast(one.detach())
        if one.requires_grad:
            leaves.append(made.requires_grad_())
        return made

    with torch.enable_grad():
        by_place, by_name = with_tensors(leaf, arguments)
        made = tensors_in(called(*by_place, **by_name))
        if len(made) != 1 or made[0].shape != gradient.shape or not leaves:
            return ()
        return torch.autograd.grad(made, leaves, gradient.to(made[0].dtype), allow_unused=True)


def observer_of(mode: RunMode, locator: Locator) -> Observer:
    if mode.beside is not None:
        return Measuring(mode, locator)
    return (Compiled if mode.compiled else InFloat32)(mode, locator)
