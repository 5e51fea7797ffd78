"""Putting policies into torch, and taking them out again without a trace."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from habana_mp import _core, _policy, ops
from habana_mp._checkpoint import checkpoint_replacement
from habana_mp._compiled import Compiled, forget_compiled_code
from habana_mp._composites import Composite, Replacement
from habana_mp._exchanged import Exchanged
from habana_mp._marks import MARK, MARK_DTYPES, MARK_NUMBER
from habana_mp._memory import Memory
from habana_mp._modules import Modules, Within
from habana_mp._places import Places, warn_if_in_autocast
from habana_mp._policy import Policy
from habana_mp._replicas import parallel_apply_replacement
from habana_mp._weights import Weights

_lock = threading.RLock()
_R = TypeVar("_R")


class Installation:
    """What is in torch now: convert's policy, if there is one, and those of regions that were entered. There is one for
    the process, as there is one torch."""

    def __init__(self) -> None:
        #: convert's
        self.policy: Policy | None = None
        #: By number, what each region needs; and the numbers of those that are in torch.
        self._regions: dict[int, Policy] = {}
        self._regions_in_torch: set[int] = set()
        #: What regions were asked for by arguments that say all, and the number of each. None of them needs putting in.
        self.numbers: dict[tuple[Any, ...], int] = {}
        #: Is what the core has put into torch, if anything, of this module?
        self._is_ours = False
        self._is_supported = False
        self._replacements: list[Replacement] = []
        self._composites: dict[Any, Composite] = {}
        self._places = Places()
        self._compiled = Compiled()
        self._exchanged = Exchanged()
        self._weights = Weights()
        self._memory = Memory()
        self._modules = Modules()

    def install(self, policy: Policy, within: Within = None) -> None:
        """Replace convert's policy by this one, which lowers within these modules only. When that fails, what was
        installed before stays."""
        with _lock:
            self.check_alone()
            _bind()
            # Whatever can fail is made before anything is changed; the core checks everything before its first store.
            composites = self._make_composites(policy)
            plan = _policy.plan(policy)
            self._modules.check(within)
            warn_if_in_autocast()
            self._store(lambda: _core.install(plan, within_modules=within is not None), is_whole=True)
            try:
                self._modules.install(within)
                self._support(policy, weights_of=policy)
                forget_compiled_code()
                self.policy = policy
                self._exchange_composites(composites)
            except BaseException:
                self.uninstall()
                raise

    def make_region(self, policy: Policy, *, on_cpu: bool, keeps_weights: bool, name: str, after_recorded: Any) -> int:
        """The number of a region with these rules, ready to be entered."""
        with _lock:
            self.check_alone()
            _bind()
            composites = self._make_composites(policy)
            plan = _policy.plan(policy, keeps_weights=keeps_weights)
            number = self._store(
                lambda: _core.make_region(plan=plan, on_cpu=on_cpu, name=name, after_recorded_cast=after_recorded)
            )
            self._regions[number] = policy
            self._add_region(number, composites)
            return number

    def put_in_region(self, number: int) -> None:
        """A region is ready to be entered again after :meth:`uninstall`."""
        with _lock:
            self.check_alone()
            composites = self._make_composites(self._regions[number])
            self._store(lambda: _core.put_in_region(number))
            self._add_region(number, composites)

    def _store(self, change: Callable[[], _R], *, is_whole: bool = False) -> _R:
        """Let the core change torch: all that is there, or a region's part of it."""
        changes, was_ours = _core.change_count(), self._is_ours
        self._is_ours = True
        try:
            return change()
        except BaseException:  # a signal's handler may raise after it was changed
            if _core.change_count() == changes:
                self._is_ours = was_ours
            elif is_whole or self.policy is None:
                self.uninstall()
            raise

    def _add_region(self, number: int, composites: dict[Any, Composite]) -> None:
        self._regions_in_torch.add(number)
        try:
            self._support(self._regions[number], weights_of=None if self._is_supported else Policy())
            self._exchange_composites(composites)
        except BaseException:
            if self.policy is None:
                self.uninstall()
            raise

    def _support(self, policy: Policy, *, weights_of: Policy | None) -> None:
        """Put in what any lists need beside the rules themselves."""
        _core.set_function_twins(
            {
                getattr(torch._C.TensorBase, name): getattr(torch._C._VariableFunctions, row.twin)
                for name, row in ops.rows().items()
                if row.twin
            }
        )
        self._places.install()
        self._compiled.install()
        self._exchanged.install()
        if weights_of is not None:
            self._weights.install(
                on=weights_of.weight_cache, limit=weights_of.weight_cache_limit, packed=weights_of.packed_weights
            )
            _core.set_skips_slower(weights_of.skip_slower)
            self._memory.install(on=weights_of.reuse_memory)
        if not self._replacements:
            self._replacements = [checkpoint_replacement(), parallel_apply_replacement()]
            for replacement in self._replacements:
                replacement.install()
        self._is_supported = True

    def _policies(self) -> list[Policy]:
        regions = [self._regions[number] for number in self._regions_in_torch]
        return regions if self.policy is None else [self.policy, *regions]

    def check_alone(self) -> None:
        """The core is one for the process. A second copy of this module knows nothing of what the first has changed."""
        with _lock:
            if not self._is_ours and _core.installed_count() != 0:
                raise RuntimeError(
                    "habana_mp was imported a second time while the first import is converted; call `restore()` of "
                    "the first one, or start a new process"
                )

    def _make_composites(self, policy: Policy) -> dict[Any, Composite]:
        wanted = {one.builtin.object: one.operation for one in policy.composites}
        return {
            function: Composite(function, operation)
            for function, operation in wanted.items()
            if function not in self._composites
        }

    def _exchange_composites(self, made: dict[Any, Composite]) -> None:
        wanted = {one.builtin.object for policy in self._policies() for one in policy.composites}
        for function in self._composites.keys() - wanted:
            self._composites.pop(function).uninstall()
        self._composites |= made  # before they are installed: what is known is uninstalled, wherever a signal came
        for replacement in made.values():
            replacement.install()

    def uninstall(self) -> None:
        """Torch is as it was before the first :meth:`install`, and regions that are open cast nothing."""
        with _lock:
            self._modules.uninstall()
            self._places.uninstall()
            self._compiled.uninstall()
            self._exchanged.uninstall()
            self._weights.uninstall()
            self._memory.uninstall()
            _core.set_skips_slower(False)
            for replacement in (*self._replacements, *self._composites.values()):
                replacement.uninstall()
            self._replacements = []
            self._composites = {}
            _core.uninstall()
            self.policy = None
            self._regions_in_torch = set()
            self.numbers.clear()
            self._is_supported = False
            self._is_ours = False


def _bind() -> None:
    _core.bind_torch()
    _core.set_region_mark(MARK, MARK_NUMBER, MARK_DTYPES, torch.set_autocast_enabled, torch.set_autocast_dtype)


installation = Installation()
