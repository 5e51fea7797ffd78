"""The guard: watches for values that are not finite, and names the operation that made the first one.

It checks a share of the calls. When it has seen such a value, it searches: all calls are checked, with the gradients of
those that autograd tracks, until one makes such a value of finite inputs. A search knows one thing of each tensor:
where its values come from.
"""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from habana_mp import _core
from habana_mp.common.blocks import ProcessBlock
from habana_mp.common.errors import HmpWarning
from habana_mp.patches.installation import installation
from habana_mp.patches.tools.compiled_functions import EagerMode, run_by_python
from habana_mp.patches.torch import begun_backwards
from habana_mp.patches.torch.watched_calls import configure_core
from habana_mp.reporting import guard_texts
from habana_mp.reporting.gradients import bad_gradient, follow
from habana_mp.reporting.guard_texts import Lowered
from habana_mp.reporting.judging import Call, Worst, judge, memory_of, node_of, worst_of
from habana_mp.reporting.origins import Origin, here
from habana_mp.reporting.ranks import own_rank

Guard = bool | float | Literal["raise"]

#: The share of calls that ``guard=True`` checks.
_SHARE = 0.01
#: A search checks so many calls, and remembers the sources of so many tensors.
_MOST_CALLS = 100_000

#: The key under which a node of autograd's graph has the lowered operation that its values come from.
_LOWERED = "habana_mp.lowered"

#: Where values come from: a lowered operation, infinities that the code has written, or a NaN that a call passed on.
_Source = Lowered | Literal["written", "passed on"]


class _Search:
    """A search for the operation. ``seen``: what began it; empty if all calls are checked from the start. ``origin``:
    the call that began it, if it was a call."""

    def __init__(self, seen: str = "", origin: Origin | None = None) -> None:
        self.seen = seen
        self.origin = origin
        #: The calls that were checked.
        self.calls = 0
        #: True if every value since the beginning of the step was checked, so that an unknown one is an input.
        self.is_whole = origin is None
        #: By the memory of a tensor where its values come from.
        self._sources: dict[int, _Source] = {}
        #: The text about the first call that received a NaN which no call made, and its origin.
        self.received: tuple[str, Origin] | None = None
        #: The text about the first call that made a NaN of an infinity which no call made.
        self.of_infinity = ""

    def note(self, tensors: Iterable[torch.Tensor], source: _Source | None) -> None:
        """Notes where the values of these tensors come from. None: from nothing of this kind."""
        for place in map(memory_of, tensors):
            self._sources.pop(place, None)
            if source is not None:
                self._sources[place] = source
        while len(self._sources) > _MOST_CALLS:
            del self._sources[next(iter(self._sources))]

    def knows(self, tensors: Iterable[torch.Tensor], source: _Source) -> bool:
        """True if values of these tensors come from there."""
        return any(self._sources.get(memory_of(one)) == source for one in tensors)

    def note_finite(self, call: Call) -> None:
        """Notes the lowered operation that the values of a finite result come from."""
        lowered = guard_texts.lowered_by(call) or self.lowered_behind(call)
        results = call.results()
        if lowered is None:
            inputs = set(map(memory_of, call.inputs()))  # a view says nothing about the rest of its memory
            results = [one for one in results if memory_of(one) not in inputs]
        self.note(results, lowered)
        for node in map(node_of, results):
            if lowered is not None and node is not None:
                node.metadata[_LOWERED] = lowered

    def lowered_behind(self, call: Call) -> Lowered | None:
        found = (self._sources.get(memory_of(one)) or _before_conversion(one) for one in call.inputs())
        return next((one for one in found if isinstance(one, Lowered)), None)

    def receives_input(self, call: Call, origin: Origin) -> bool:
        """True if what is not finite is an input of the program, the first one. Outside of modules it may be a gradient
        after a loss."""
        if not self.is_whole or self.received is not None or (self.seen and not origin.modules):
            return False
        if call.before is not None or _core.computes_gradient():
            return False
        bad = [one for one in call.inputs() if worst_of((one,)) is call.worst_input()]
        return bool(bad) and all(node_of(one) is None for one in bad) and not self.knows(bad, "passed on")


def _before_conversion(tensor: torch.Tensor) -> Lowered | None:
    """Returns the lowered operation behind `.float()`, which the guard does not see, if autograd tracks it."""
    node = node_of(tensor)
    before = node.next_functions[0][0] if node is not None and node.name() == "ToCopyBackward0" else None
    return None if before is None else before.metadata.get(_LOWERED)


#: For each device whether a NaN was seen there: the flag, and its copy for the host, which may be under way.
_flags: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}


@torch.no_grad()
def _note_on_device(call: Call) -> bool:
    """Checks the results of a call on their devices. Returns whether one of an earlier call had a NaN: the answer is
    read later, so that no call waits for a device."""
    seen = False
    for result in call.results():
        device, is_cuda = result.device, result.is_cuda
        is_captured = is_cuda and torch.cuda.is_current_stream_capturing()
        if device.type in ("cpu", "meta") or not result.is_floating_point() or is_captured:
            continue
        if device not in _flags:
            flag = torch.zeros((), dtype=torch.bool, device=device)
            _flags[device] = flag, torch.zeros((), dtype=torch.bool, pin_memory=is_cuda)
        flag, copy = _flags[device]
        flag.logical_or_(torch.isnan(result.detach()).any())
        if bool(copy):
            seen = True
            del _flags[device]
        else:
            copy.copy_(flag, non_blocking=is_cuda)
    return seen


class _Guarding:
    """The guard of this process."""

    def __init__(self) -> None:
        #: The share of calls that is checked while there is no search; 0 while the guard is off.
        self.share = 0.0
        self._raises = False
        self._search: _Search | None = None
        self._has_scaler = False
        #: The device of the last call that was checked.
        self._device: torch.device | None = None
        self._eager = EagerMode()
        self._hook: Any = None

    # ---- on and off --------------------------------------------------------------------------------------------------

    def of_convert(self, guard: Guard) -> None:
        """Begins or ends."""
        self.end()
        if guard is False:
            return
        configure_core()
        self.share = guard if isinstance(guard, float) else _SHARE
        self._raises = guard == "raise"
        self._has_scaler = False
        _core.forget_guarded_largest()
        guard_texts.named.clear()
        self._begin()
        self.begin_checks()

    def end(self) -> None:
        """Ends the guard, and warns of a search that found nothing."""
        if self._search is not None and self._search.seen:
            self._raises = False
            self._passed(self._search)
        elif self.share:
            self.share, self._search = 0.0, None
            self.end_checks()
            self._eager.end()
            installation.set_observer("guard", self, is_on=False)

    def begin_checks(self) -> None:
        self.end_checks()
        begun_backwards.listen(self._backward_begins, self._loss_is_scaled)
        self._hook = register_optimizer_step_pre_hook(self._step_begins)
        self._set_search(self._search)

    def end_checks(self) -> None:
        _core.guard_calls(None, 0.0)
        if self._hook is not None:
            self._hook.remove()
        begun_backwards.stop_listening(self._backward_begins)

    def _begin(self) -> None:
        """Begins to check a share of the calls, or to search among all from the start."""
        self._eager.end()
        _flags.clear()
        self._set_search(_Search() if self.share >= 1 else None)

    def _set_search(self, search: _Search | None) -> None:
        """Lets the core check all calls in a search, and else a share of them."""
        self._search = search
        installation.set_observer("guard", self, is_on=search is not None)
        _core.guard_calls(self._found, self.share if search is None else 1.0)

    def _begin_search(self, seen: str, origin: Origin | None = None) -> _Search:
        self._eager.begin()
        if self._search is None:
            self._set_search(_Search(seen, origin))
        assert self._search is not None
        self._search.seen = self._search.seen or seen
        return self._search

    # ---- what the core and torch report -----------------------------------------------------------------------------

    @run_by_python
    def _found(self, *given: Any) -> None:
        """Receives what :func:`_core.guard_calls` gives."""
        called, operation, arguments, keywords, result, state, before = given
        search = self._search
        if search is not None and self.share < 1:
            search.calls += 1
            if search.calls == _MOST_CALLS:
                self._passed(search)
                return
        call = Call(called, operation, arguments, keywords, result, None if before < 0 else Worst(before))
        self._device = next((one.device for one in call.results()), self._device)
        if state == Worst.UNKNOWN and search is None and self._device != torch.device("cpu"):
            if _note_on_device(call):
                self._begin_search("a result on a device")
            return
        worst = worst_of(call.results()) if state == Worst.UNKNOWN else Worst(state)
        if worst is Worst.NUMBERS:
            if search is not None:
                search.note_finite(call)
                if not self._has_scaler:
                    follow(call, self._made_gradient)
            return
        if not self.share:
            return  # another thread has ended the guard
        verdict = judge(call, worst, is_of_written=search is not None and search.knows(call.inputs(), "written"))
        if verdict == "made":
            lowered = None if search is None or worst is not Worst.NANS else search.lowered_behind(call)
            self._name(guard_texts.made(call, worst, origin := here(), lowered), origin)
        elif worst is Worst.NANS and verdict == "passed on":
            self._passed_on(call)
        elif worst is Worst.INFINITIES and verdict == "written" and search is not None:
            search.note(call.results(), verdict)

    def _passed_on(self, call: Call) -> None:
        search, origin, seen = self._search, here(), f"the result of `{call.operation}`"
        if search is None:
            search = self._begin_search(seen, origin)
            search.note(call.inputs(), "passed on")
        elif search.origin == origin:
            search.is_whole = True
        worst = call.worst_input()
        if worst is Worst.INFINITIES and not search.of_infinity:
            search.of_infinity = guard_texts.of_infinity(call, origin)
        weights = [one for one in call.inputs() if isinstance(one, torch.nn.Parameter) and call.before is None]
        bad_weight = next((one for one in weights if worst_of((one,)) is worst), None)
        if bad_weight is not None:
            search.seen = search.seen or seen
            self._passed(search, guard_texts.weight_in(origin, bad_weight, worst))
            return
        if search.receives_input(call, origin):
            search.received = guard_texts.received(call, origin), origin
        search.note(call.results(), "passed on")
        if weights and search.received is not None:
            self._name(*search.received)

    def _backward_begins(self, loss: torch.Tensor) -> None:
        if not self._has_scaler:
            self._look_at_loss(loss)
        if self._search is not None:
            self._search.is_whole = True

    def _loss_is_scaled(self, loss: torch.Tensor) -> None:
        self._has_scaler = True  # it handles gradients that are not finite
        self._look_at_loss(loss)

    def _look_at_loss(self, loss: torch.Tensor) -> None:
        if worst_of((loss,)) is Worst.NUMBERS:
            return
        if self._search is not None and self._search.received is not None:
            self._name(*self._search.received)
        else:
            self._begin_search("a loss")

    @run_by_python
    def _step_begins(self, optimizer: Any, *_: Any) -> None:
        weight = None if self._has_scaler else bad_gradient(optimizer)
        if weight is not None:
            self._begin_search(f"the gradient of a weight of shape {tuple(weight.shape)}")

    def _made_gradient(self, operation: str, origin: Origin, worst: Worst) -> None:
        if self._search is not None and not self._has_scaler:
            self._name(guard_texts.made_gradient(operation, worst, origin), origin)

    # ---- the end of a search ----------------------------------------------------------------------------------------

    def _name(self, text: str, origin: Origin) -> None:
        """Names an operation."""
        rank = own_rank()
        # The first sentence: what follows has values, which differ between ranks.
        guard_texts.named[text.partition(". ")[0]] = () if rank is None else (rank,)
        self._tell(text, origin)

    def _passed(self, search: _Search, weight: str = "") -> None:
        """Says that the operation ran before all calls were checked."""
        text = guard_texts.passed(search.seen, search.origin, weight, checks_all=self.share >= 1)
        self._tell(text + search.of_infinity, search.origin or here())

    def _tell(self, text: str, origin: Origin) -> None:
        """Raises, or warns and ends the guard."""
        text += guard_texts.ending(own_rank(), self._device)
        if self._raises:
            self._begin()
            raise FloatingPointError(text)
        self._search = None
        self.end()
        warnings.warn_explicit(text, HmpWarning, origin.file, origin.line)


class _Unguarded(ProcessBlock):
    """A block in which nothing is checked."""

    def settle(self) -> None:
        (guarding.end_checks if self.entrances or not guarding.share else guarding.begin_checks)()


guarding = _Guarding()
unguarded = _Unguarded()
atexit.register(guarding.end)
