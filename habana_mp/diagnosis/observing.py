"""The observers of a step: they get each call while the step runs."""

from __future__ import annotations

import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from habana_mp import _core, ops
from habana_mp.diagnosis import measuring
from habana_mp.diagnosis.exact import (
    RandomState,
    apart,
    detached_in_float32,
    in_float32,
    is_lower,
    may_be_random,
    repeatable,
    tensors_of,
    with_rounded_operands,
)
from habana_mp.diagnosis.sites import Line, Locator, Site, Sites
from habana_mp.patches.tools.casts_off import casts_off
from habana_mp.patches.tools.compiled_functions import run_by_python
from habana_mp.patches.tools.pytree import tree_map
from habana_mp.patches.torch.compiled_runs import Lines, compiled_anew

#: The errors of a call that cannot be made again in float32.
_NOT_REPEATABLE = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)

#: Inputs with this many values or more are not copied. (Copies show if the step does the same each time.)
_LARGE = 1 << 20

#: At most this many operations are stored as the makers of a value, the last one first.
_MOST_MAKERS = 8

#: Operations whose gradient is zero, or is not the gradient of what they return.
_STEPS = frozenset(("round", "floor", "ceil", "trunc", "fix", "frac", "sign", "sgn", "heaviside", "bucketize"))

#: The backward of these operations makes products too, whose error is one rounding. Repeating it would take long.
PRODUCTS = frozenset(
    name for row in (*ops.products.ROWS, *ops.convolutions.ROWS, *ops.recurrent.ROWS) for name in row.names.split()
)

#: Conversions that the user asked for.
_CONVERSIONS = frozenset(("to", "type", "type_as", "bfloat16", "half", "float", "double", "copy_", "_to_copy"))

Samples = dict[tuple[str, str, str, int, int], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Call:
    """A call, and the floating tensors among its arguments."""

    called: Any
    operation: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    inputs: list[torch.Tensor]

    def kept(self) -> _Kept | None:
        """Returns the data for another run of the call's backward. Returns None if that shows nothing or takes long."""
        if may_be_random(self.operation) or self.operation in PRODUCTS:
            return None
        return _Kept(self.called, *repeatable(self.operation, self.arguments, self.keywords))


class Observer:
    """Makes calls unchanged."""

    #: False if modules may have no hooks while the step runs.
    hooks_modules = True

    def __init__(self, locator: Locator) -> None:
        self.locator = locator
        self._paused = threading.local()
        self.is_on = True
        #: The operation and the place of the first call, and copies of its inputs.
        self.first_call: tuple[str, ...] = ()
        self.first_inputs: list[torch.Tensor] | None = None
        #: Called with each tensor that a call uses and that gets a gradient of its own, and with True if the call
        #: writes into its first argument.
        self.leaf_is_used: Callable[[torch.Tensor, bool], None] = lambda *_: None
        #: True for the threads of the step.
        self.belongs: Callable[[], bool] = lambda: True

    @contextmanager
    def observing(self) -> Iterator[None]:
        """A block in which this observer gets all calls, except for those under torch.func and in torch's modes."""
        former = _core.observe_calls(self._answer)
        try:
            yield
        finally:
            _core.observe_calls(former)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block in which the calls of this thread are made unchanged."""
        before = getattr(self._paused, "is_on", False)
        self._paused.is_on = True
        try:
            yield
        finally:
            self._paused.is_on = before

    @run_by_python
    def _answer(self, called: Any, operation: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if not self.is_on or getattr(self._paused, "is_on", False) or not self.belongs():
            return _core.make_observed_call()
        given = tensors_of((arguments, keywords))
        writes = ops.is_in_place(operation)
        if self.first_inputs is None and given and not writes:
            with apart():
                self.first_inputs = [one.detach().clone() for one in given if one.numel() < _LARGE]
                self.first_call = (operation, *map(str, self.locator.here()))
        for one in given:
            if one.requires_grad and one.is_leaf:
                self.leaf_is_used(one, writes)
        inputs = [one for one in given if one.is_floating_point()]
        has_own = keywords.get("dtype") is not None or keywords.get("out") is not None
        if not inputs or has_own or operation in _CONVERSIONS:
            return self.make_unchanged()
        return self.observe(Call(called, operation, arguments, keywords, inputs))

    def make_unchanged(self) -> Any:
        """Makes the current call with its own arguments."""
        return _core.make_observed_call()

    def observe(self, call: Call) -> Any:
        """Returns the result of a call."""
        raise NotImplementedError


class InFloat32(Observer):
    """Makes calls in float32, either all of them or those at some lines. If it makes all, it takes samples of the
    results."""

    def __init__(
        self,
        locator: Locator,
        lines: frozenset[Line] | None = None,
        *,
        sums: frozenset[Line] = frozenset(),
        operands: torch.dtype = torch.bfloat16,
        rounded: torch.dtype | None = None,
        rounded_lines: frozenset[Line] = frozenset(),
        sign: int = 1,
    ) -> None:
        super().__init__(locator)
        self._lines = None if lines is None else lines | sums
        self._operations = None if self._lines is None else {one.operation for one in self._lines}
        #: The lines whose products have operands in this precision.
        self._sums, self._precision_of_operands = sums, operands
        #: The weights at these lines are disturbed by their rounding to this precision, times `sign`.
        self._rounded, self._rounded_lines, self._sign = rounded, rounded_lines, sign
        self.samples: Samples = {}
        self._calls: Counter[tuple[str, str, str, int]] = Counter()

    @contextmanager
    def observing(self) -> Iterator[None]:
        # Steps that are skipped run unchanged. In this case casts are switched off for each single call, so calls under
        # torch.func, which are not observed, are lowered.
        is_whole = self._lines is None and self.is_on
        with casts_off() if is_whole else nullcontext(), super().observing():
            yield

    def make_unchanged(self) -> Any:
        with casts_off() if self._lines is None else nullcontext():
            return super().make_unchanged()

    def observe(self, call: Call) -> Any:
        operation = call.operation
        if ops.is_in_place(operation) or (self._operations is not None and operation not in self._operations):
            return self.make_unchanged()
        place = self.locator.here()
        line = Line(operation, *place[1:])
        if self._lines is not None and line not in self._lines:
            return self.make_unchanged()
        other = _as_it_is
        if self._rounded is not None and operation in PRODUCTS and line in self._rounded_lines:
            other = partial(_disturbed, to=self._rounded, sign=self._sign)
        with casts_off():
            given = call.arguments, call.keywords
            if line in self._sums:
                given = with_rounded_operands(operation, *given, self._precision_of_operands)
            arguments, keywords = in_float32(given, other)
            try:
                result = call.called(*arguments, **keywords)
            except _NOT_REPEATABLE:
                result = _core.make_observed_call()
            if self._lines is None and self._rounded is None:
                self._sample(operation, place, result)
        return result

    def _sample(self, operation: str, place: tuple[str, str, int], result: Any) -> None:
        key = (operation, *place)
        with torch.no_grad():
            for one in tensors_of(result):
                self._calls[key] += 1
                values = measuring.sample(one)
                if values is not None:
                    self.samples[(*key, self._calls[key])] = values


class Compiled(Observer):
    """Gets no calls: compiled functions run compiled. They would be compiled otherwise if modules had hooks."""

    hooks_modules = False

    def __init__(self, locator: Locator, rounded: frozenset[Line] | None) -> None:
        """``rounded``: the lines whose results compiled code rounds as eager code does. None means all lines."""
        super().__init__(locator)
        self._rounded = None if rounded is None else {one[1:] for one in rounded}
        #: The lines whose results compiled code may keep in float32.
        self.unrounded: Lines = set()

    @contextmanager
    def observing(self) -> Iterator[None]:
        with compiled_anew(self.unrounded, self._rounded):
            yield


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


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

    def __init__(self, locator: Locator, exact: Samples) -> None:
        super().__init__(locator)
        self.sites = Sites()
        #: Results of the same step in float32.
        self._exact = exact
        self._calls: Counter[tuple[str, str, str, int]] = Counter()
        self._made = 0
        self._makers: dict[int, tuple[weakref.ref[torch.Tensor], tuple[Site, ...]]] = {}
        #: The lines for which the backward of one call is followed already.
        self._followed: set[Line] = set()

    def observe(self, call: Call) -> Any:
        self._made += 1
        operation, number = call.operation, self._made
        place = self.locator.here()
        writes = ops.is_in_place(operation)
        target = call.arguments[0] if writes and call.arguments else None
        before = None
        if isinstance(target, torch.Tensor) and is_lower(target):
            with apart():
                before = target.detach().float()
        random = RandomState() if may_be_random(operation) else None
        result = _core.make_observed_call()
        results = tensors_of(result)
        makers = self._makers_of(call.inputs)
        key = (operation, *place)
        first = self._calls[key]
        self._calls[key] += len(results)
        if any(one is given for one in results for given in call.inputs) and not writes:
            return result
        gives_others = any(not one.is_floating_point() for one in results)
        is_lowered = any(map(is_lower, results)) and (not writes or before is not None)
        if is_lowered or gives_others:
            with apart():
                site = self.sites.at(operation, place)
                makers = self._measure(call, number, site, first, results, before, random, makers)
        if operation in _STEPS or gives_others:
            with apart():
                self._note_decisions(key, first, results, makers)
        self._note_makers(results, makers)
        return result

    # ---- one call ----------------------------------------------------------------------------------------------------

    def _measure(
        self,
        call: Call,
        number: int,
        site: Site,
        first: int,
        results: list[torch.Tensor],
        before: torch.Tensor | None,
        random: RandomState | None,
        makers: tuple[Site, ...],
    ) -> tuple[Site, ...]:
        """Makes the call again in float32. Returns the makers of the results."""
        after = None if random is None else RandomState()
        if random is not None:
            random.restore()
        try:
            given = call.arguments if before is None else (before, *call.arguments[1:])
            arguments, keywords = detached_in_float32(repeatable(call.operation, given, call.keywords))
            exact = tensors_of(call.called(*arguments, **keywords))
        except _NOT_REPEATABLE:
            return makers
        finally:
            if after is not None:
                after.restore()
        if len(exact) != len(results):
            return makers
        site.calls += 1
        if site.calls == 1:
            measuring.note_inputs(site, call.inputs)
        has_error = False
        for place, (low, one) in enumerate(zip(results, exact, strict=True), first + 1):
            self._compare_inherited(site, place, one)
            if measuring.is_comparable(low, one):
                if random is not None and not _same_zeros(low, one):
                    continue  # the random numbers differ
                error = measuring.compare_floats(site, low, one, call.inputs, number)
                if error is not None:
                    has_error = True
                    self._follow(site, call, low, error)
            elif not low.is_floating_point():
                measuring.compare_others(site, low, one)
                has_error = has_error or site.changed > 0
        if not has_error:
            return makers
        return (site, *(one for one in makers if one is not site))[:_MOST_MAKERS]

    def _follow(self, site: Site, call: Call, low: torch.Tensor, error: torch.Tensor) -> None:
        """Registers a hook that gets the gradient of the loss with respect to a result."""
        if low.grad_fn is None or not low.requires_grad:
            return
        follows = site.where not in self._followed and not ops.is_in_place(call.operation)
        self._followed.add(site.where)
        kept = error.to(torch.bfloat16)  # precise enough, and no larger than the result
        hook = partial(self._gradient, site, kept, call.kept() if follows else None)
        low.register_hook(hook)  # type: ignore[no-untyped-call]  # torch's has no types

    def _gradient(self, site: Site, error: torch.Tensor, call: _Kept | None, gradient: torch.Tensor | None) -> None:
        if gradient is None:  # an autograd.Function returned no gradient
            return
        with self.paused(), apart():
            product = gradient * error
            site.has_gradient = True
            site.effect += float(product.sum(dtype=torch.float32))
            site.effect_squares += float(torch.linalg.vector_norm(product)) ** 2
            site.gradients += gradient.numel()
            if gradient.dtype == torch.float16:
                site.zero_gradients += int((gradient == 0).sum())
            if call is not None:
                site.gradient_error = max(site.gradient_error, call.gradient_error(gradient))

    # ---- beside the run in float32 -----------------------------------------------------------------------------------

    def _compare_inherited(self, site: Site, call: int, exact: torch.Tensor) -> None:
        reference = self._exact.get((site.where.operation, site.module, site.where.file, site.where.line, call))
        values = None if reference is None else measuring.sample(exact)
        if values is None or reference is None or values.shape != reference.shape or not values.is_floating_point():
            return
        site.inherited += _square(values - reference.to(values.dtype))
        site.inherited_of += _square(reference)

    def _note_decisions(
        self,
        key: tuple[str, str, str, int],
        first: int,
        results: list[torch.Tensor],
        makers: tuple[Site, ...],
    ) -> None:
        """Marks the makers of values that lead to another decision than in float32."""
        if all(one.decides for one in makers):
            return
        for call, one in enumerate(results, first + 1):
            reference = self._exact.get((*key, call))
            values = measuring.sample(one)
            if reference is None or values is None or values.shape != reference.shape:
                continue
            if bool((values != reference.to(values.dtype)).any()):
                for maker in makers:
                    maker.decides = True
                return

    # ---- makers ------------------------------------------------------------------------------------------------------

    def _makers_of(self, inputs: list[torch.Tensor]) -> tuple[Site, ...]:
        found: dict[Site, None] = {}
        for one in inputs:
            for tensor in (one, one._base):
                known = None if tensor is None else self._makers.get(id(tensor))
                if known is not None and known[0]() is tensor:
                    found.update(dict.fromkeys(known[1]))
                    break
        return tuple(found)[:_MOST_MAKERS]

    def _note_makers(self, results: list[torch.Tensor], makers: tuple[Site, ...]) -> None:
        if makers:
            for one in results:
                self._makers[id(one)] = weakref.ref(one), makers


class _Kept:
    """A call whose backward is made twice: in float32, and in the precision of its result."""

    def __init__(self, called: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._called, self._arguments, self._keywords = called, arguments, keywords
        self._versions = self._current_versions()

    def _current_versions(self) -> list[int]:
        return [one._version for one in tensors_of((self._arguments, self._keywords)) if not one.is_inference()]

    def gradient_error(self, gradient: torch.Tensor) -> float:
        """Returns the relative error of the gradients of the inputs; zero if it cannot be found."""
        if self._current_versions() != self._versions:
            return 0.0
        try:
            exact = self._gradients(gradient.float(), lambda one: one.float() if is_lower(one) else one)
            low = self._gradients(gradient, lambda one: one.to(gradient.dtype) if one.is_floating_point() else one)
        except _NOT_REPEATABLE:
            return 0.0
        worst = 0.0
        for one, other in zip(low, exact, strict=True):
            if one is None or other is None:
                continue
            size = _square(other)
            error = _square(one.float() - other)
            if size > 0 and math.isfinite(error / size):
                worst = max(worst, (error / size) ** 0.5)
        return worst

    def _gradients(
        self, gradient: torch.Tensor, cast: Callable[[torch.Tensor], torch.Tensor]
    ) -> tuple[torch.Tensor | None, ...]:
        leaves: list[torch.Tensor] = []

        def leaf(one: torch.Tensor) -> torch.Tensor:
            made = cast(one.detach())
            if one.requires_grad and one.is_floating_point():
                made = made.detach().requires_grad_() if made is not one else made
                leaves.append(made)
            return made

        with torch.enable_grad():

            def mapped(value: Any) -> Any:
                return tree_map(lambda one: leaf(one) if isinstance(one, torch.Tensor) else one, value)

            result = self._called(*mapped(self._arguments), **mapped(self._keywords))
            made = tensors_of(result)
            if len(made) != 1 or made[0].shape != gradient.shape or not leaves:
                return ()
            return torch.autograd.grad(made, leaves, gradient.to(made[0].dtype), allow_unused=True)


def _same_zeros(low: torch.Tensor, exact: torch.Tensor) -> bool:
    """True if nearly the same values are zero, which shows that the same random numbers were drawn."""
    differ = int(((low == 0) != (exact == 0)).sum())
    return differ <= 0.02 * low.numel()


def _square(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values.float())) ** 2
