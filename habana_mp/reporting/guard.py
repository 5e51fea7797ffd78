"""The guard: watches for values that are not finite, and names the operation that made the first one.

It checks a share of the calls. When it has seen such a value, it searches: all calls are checked, with the gradients of
those that autograd tracks, until one makes such a value of finite inputs.
"""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from habana_mp import _core
from habana_mp.common.errors import HmpWarning, warn
from habana_mp.patches.installation import installation
from habana_mp.patches.tools.compiled_functions import run_by_python
from habana_mp.patches.tools.eager_mode import EagerMode
from habana_mp.patches.torch import begun_backwards
from habana_mp.patches.torch.watched_calls import configure_core
from habana_mp.reporting import guard_texts
from habana_mp.reporting.device_flags import DeviceFlags
from habana_mp.reporting.gradients import GradientHooks, SampledGradients
from habana_mp.reporting.guard_texts import Lowered
from habana_mp.reporting.judging import Call, Worst, judge, memory_of, node_of, tensors_in, worst_of
from habana_mp.reporting.origins import Origin, here
from habana_mp.reporting.ranks import own_rank

Guard = bool | float | Literal["raise"]

#: The share of calls that ``guard=True`` checks.
_SHARE = 0.01
#: Searches without success that calls may begin, and all searches: later values that are not finite say nothing new.
_SEARCHES_BY_CALLS = 3
_SEARCHES = 10
#: A search ends after so many calls.
_MOST_CALLS = 100_000

#: The most results of which a search remembers where they come from.
_MOST_REMEMBERED = 1000

#: The key under which a node of autograd's graph has the lowered operation that its values come from.
_LOWERED = "habana_mp.lowered"

_LOSS = "a loss"


class _Search:
    """A search for the operation: what began it, and how far it came."""

    def __init__(self, seen: str, origin: Origin | None, *, from_start: bool = False) -> None:
        self.seen = seen
        self.origin = origin
        #: True if every value since the beginning of the step was checked, so that an unknown one is an input.
        self.is_whole = from_start or origin is None
        self.backwards = 0
        self.repeats = 0
        #: The memory of results with a NaN that a call passed on, and of those with infinities that the code wrote.
        self.bad: set[int] = set()
        self.infinite: set[int] = set()
        #: By the memory of a result the lowered operation that its values come from.
        self.lowered: dict[int, Lowered] = {}
        #: The first call that received a NaN which no call made.
        self.received: tuple[Call, Origin] | None = None
        #: The first call that made a NaN of an infinity which no call made.
        self.of_infinity: tuple[Call, Origin] | None = None

    def remember(self, call: Call) -> None:
        """Remembers the lowered operation that the values of a finite result come from."""
        lowered = guard_texts.lowered_by(call) or self.lowered_behind(call)
        for result in tensors_in(call.result):
            place = memory_of(result)
            self.lowered.pop(place, None)
            if lowered is not None:
                self.lowered[place] = lowered
                node = node_of(result)
                if node is not None:
                    node.metadata[_LOWERED] = lowered
        while len(self.lowered) > _MOST_REMEMBERED:
            del self.lowered[next(iter(self.lowered))]

    def lowered_behind(self, call: Call) -> Lowered | None:
        found = (self.lowered.get(memory_of(one)) or _before_conversion(one) for one in call.inputs())
        return next((one for one in found if one is not None), None)

    def may_be_input(self, call: Call, origin: Origin, bad: list[torch.Tensor]) -> bool:
        """True if these arguments are inputs of the program. Outside of modules, and in a backward, they may be
        gradients."""
        is_outside = not origin.modules and (self.backwards > 0 or self.seen == _LOSS)
        is_early = not self.is_whole or self.received is not None
        if is_outside or is_early or call.before is not None or _core.computes_gradient():
            return False
        return bool(bad) and all(node_of(one) is None for one in bad)


def _before_conversion(tensor: torch.Tensor) -> Lowered | None:
    """Returns the lowered operation behind `.float()`, which the guard does not see, if autograd tracks it."""
    node = node_of(tensor)
    before = node.next_functions[0][0] if node is not None and node.name() == "ToCopyBackward0" else None
    return None if before is None else before.metadata.get(_LOWERED)


class _Guarding:
    """The guard of this process."""

    def __init__(self) -> None:
        self._guard: Guard = False
        self._search: _Search | None = None
        self._searches = 0
        self._told_of_passed = False
        self._has_scaler = False
        #: The device of the last call that was checked.
        self._device: torch.device | None = None
        self._hooks = GradientHooks(self._made_gradient)
        self._gradients = SampledGradients(self._gradient_seen)
        self._flags = DeviceFlags(lambda: self._begin_search("a result on a device", None))
        self._eager = EagerMode()

    # ---- on and off --------------------------------------------------------------------------------------------------

    def of_convert(self, guard: Guard) -> None:
        """Begins or ends."""
        self.end()
        if guard is False:
            return
        configure_core()
        self._guard = guard
        self._searches = 0
        self._told_of_passed = self._has_scaler = False
        _core.forget_guarded_largest()
        guard_texts.named.clear()
        if self._share >= 1:
            self._search = _Search("", None, from_start=True)
            installation.guard(guarded=True)
        self._begin_checks()

    def end(self) -> None:
        if self._guard is False:
            return
        self._end_checks()
        self._eager.end()
        installation.guard(guarded=False)
        self._tell_of(self._search)
        self._guard, self._search = False, None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block in which nothing is checked."""
        self._end_checks()
        try:
            yield
        finally:
            if self._guard is not False:
                self._begin_checks()

    def _begin_checks(self) -> None:
        begun_backwards.listen(self._backward_begins, self._loss_is_scaled)
        self._gradients.begin()
        self._check_calls()

    def _end_checks(self) -> None:
        _core.guard_calls(None, 0.0, 0)
        self._gradients.end()
        begun_backwards.stop_listening(self._backward_begins, self._loss_is_scaled)

    def _check_calls(self) -> None:
        """Lets the core check all calls in a search, and else a share of them."""
        searches = self._search is not None and self._share < 1
        _core.guard_calls(self._found, 1.0 if searches else self._share, _MOST_CALLS if searches else 0)

    def at_exit(self) -> None:
        self._tell_of(self._search)

    def _tell_of(self, search: _Search | None) -> None:
        """Warns of a search that found nothing."""
        if search is not None and search.seen and not self._told_of_passed:
            self._told_of_passed = True
            warn(self._text_of_passed(search))

    def _text_of_passed(self, search: _Search, weight: str = "") -> str:
        text = guard_texts.passed(search.seen, search.origin, weight, checks_all=self._share >= 1)
        if search.of_infinity is not None:
            text += guard_texts.of_infinity(*search.of_infinity)
        return text + guard_texts.rank_and_device(own_rank(), self._device)

    @property
    def _share(self) -> float:
        return self._guard if isinstance(self._guard, float) else _SHARE

    def _begin_search(self, seen: str, origin: Origin | None) -> None:
        if self._guard is False or (self._search is None and self._searches == _SEARCHES):
            return
        self._eager.begin()
        if self._search is None:
            self._searches += 1
            self._search = _Search(seen, origin)
            installation.guard(guarded=True)
            self._check_calls()
        elif not self._search.seen:
            self._search.seen, self._search.origin = seen, origin

    def _end_search(self) -> None:
        """Samples again."""
        self._eager.end()
        if self._share >= 1:
            self._search = _Search("", None, from_start=True)
        else:
            self._search = None
            installation.guard(guarded=False)
            self._check_calls()

    # ---- what the core and torch report -----------------------------------------------------------------------------

    @run_by_python
    def _found(
        self,
        called: Any,
        operation: str,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        result: Any,
        state: int,
        before: int,
    ) -> None:
        if state < 0:
            if self._search is not None:
                self._passed(self._search)
            return
        call = Call(called, operation, arguments, keywords, result, None if before < 0 else Worst(before))
        self._device = next((one.device for one in tensors_in(result)), self._device)
        search = self._search
        if state == Worst.UNKNOWN and search is None:
            self._flags.note(result)
            return
        worst = worst_of(guard_texts.results_of(call)) if state == Worst.UNKNOWN else Worst(state)
        if worst is Worst.NUMBERS:
            if search is not None:
                search.remember(call)
                if not self._has_scaler:
                    self._hooks.follow(call)
            return
        verdict = judge(call, worst)
        is_written = verdict == "written" or (
            search is not None and bool(search.infinite.intersection(map(memory_of, call.inputs())))
        )
        if verdict == "made" or (verdict == "of an infinity" and is_written):
            lowered = None if search is None or worst is not Worst.NANS else search.lowered_behind(call)
            self._name(guard_texts.made(call, worst, origin := here(), lowered), origin)
        elif worst is Worst.INFINITIES:
            if search is not None and is_written:
                search.infinite.update(map(memory_of, tensors_in(call.result)))
        elif verdict != "written":
            if search is not None:
                if verdict == "of an infinity" and search.of_infinity is None:
                    search.of_infinity = (call, here())
                self._passed_on(search, call)
            elif self._searches < _SEARCHES_BY_CALLS:
                self._begin_search(f"the result of `{operation}`", here())
                self._search_began(call)

    def _search_began(self, call: Call) -> None:
        if self._search is not None:
            self._search.bad.update(map(memory_of, tensors_in((call.arguments, call.keywords, call.result))))

    def _passed_on(self, search: _Search, call: Call) -> None:
        origin = here()
        if search.origin == origin:
            search.repeats += 1
            if search.repeats >= 2:
                self._passed(search)
                return
            search.is_whole = True
        worst = call.worst_input()
        bad = [one for one in call.inputs() if worst_of((one,)) is worst]
        weights = [one for one in bad if isinstance(one, torch.nn.Parameter)]
        if not search.bad.intersection(map(memory_of, bad)):
            if weights and call.before is None:
                self._passed(search, guard_texts.weight_in(origin, weights[0], worst))
                return
            if search.may_be_input(call, origin, bad):
                search.received = (call, origin)
        search.bad.update(map(memory_of, tensors_in(call.result)))
        has_weight = call.before is None and any(isinstance(one, torch.nn.Parameter) for one in call.inputs())
        if search.received is not None and has_weight:
            self._name_received(search)

    def _backward_begins(self, loss: torch.Tensor) -> None:
        self._flags.look()
        search = self._search
        is_bad = not self._has_scaler and worst_of((loss,)) is not Worst.NUMBERS
        if is_bad:
            self._loss_is_bad()
        if search is not None and search is self._search and search.seen:
            search.backwards += 1
            # A search that a call began has missed the first part of its step.
            if search.backwards >= (2 if search.origin is None else 3):
                self._passed(search)
        if self._search is not None:
            self._search.is_whole = True

    def _loss_is_scaled(self, loss: torch.Tensor) -> None:
        self._has_scaler = True  # it handles gradients that are not finite
        if worst_of((loss,)) is not Worst.NUMBERS:
            self._loss_is_bad()

    def _loss_is_bad(self) -> None:
        if self._search is not None and self._search.received is not None:
            self._name_received(self._search)
        else:
            self._begin_search(_LOSS, None)

    def _gradient_seen(self, weight: torch.Tensor) -> None:
        if not self._has_scaler:
            self._begin_search(f"the gradient of a weight of shape {tuple(weight.shape)}", None)

    def _made_gradient(self, call: str, worst: Worst, origin: Origin) -> None:
        if self._search is not None and not self._has_scaler:
            self._name(guard_texts.made_gradient(call, worst, origin), origin)

    # ---- the end of a search ----------------------------------------------------------------------------------------

    def _name(self, text: str, origin: Origin) -> None:
        """Names an operation, and ends the guard unless it raises."""
        if self._guard is False:
            return
        rank = own_rank()
        # The first sentence: what follows has values, which differ between ranks.
        guard_texts.named[text.partition(". ")[0]] = () if rank is None else (rank,)
        text += guard_texts.rank_and_device(rank, self._device) + guard_texts.range_of_float16()
        if self._guard == "raise":
            self._end_search()
            raise FloatingPointError(text)
        self._told_of_passed = True
        self.end()
        warnings.warn_explicit(text, HmpWarning, origin.file, origin.line)

    def _name_received(self, search: _Search) -> None:
        assert search.received is not None
        call, origin = search.received
        self._name(guard_texts.received(call, origin), origin)

    def _passed(self, search: _Search, weight: str = "") -> None:
        """The operation ran before all calls were checked."""
        self._end_search()
        text = self._text_of_passed(search, weight) + guard_texts.range_of_float16()
        if self._guard == "raise":
            raise FloatingPointError(text)
        if not self._told_of_passed:
            self._told_of_passed = True
            origin = search.origin or here()
            warnings.warn_explicit(text, HmpWarning, origin.file, origin.line)


guarding = _Guarding()
atexit.register(guarding.at_exit)
