"""Installs in torch what policies, regions and records need, and removes it without a trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from habana_mp import _core, ops
from habana_mp.common import locks
from habana_mp.common.bound import bind_torch
from habana_mp.patches.tools.compiled_functions import forget_compiled_code
from habana_mp.patches.tools.patch import Settings
from habana_mp.patches.tools.region_dtypes import REGION_DEVICE, REGION_DEVICE_NUMBER, REGION_DTYPES
from habana_mp.patches.tools.tapped_calls import can_tap
from habana_mp.patches.torch.autocast_regions import warn_if_in_autocast
from habana_mp.patches.torch.composites import Composite
from habana_mp.patches.torch.rules_in_modules import RulesInModules
from habana_mp.policy import kept, rules
from habana_mp.policy.options import Options
from habana_mp.policy.rules import Policy

if TYPE_CHECKING:
    from habana_mp.patches.all import Patches

_R = TypeVar("_R")
_Observer = Literal["watch", "guard", "diagnosis", "record"]


class Installation:
    """The policies that are installed in torch: convert's, if there is one, and those of regions. There is one instance
    in a process, as there is one torch."""

    def __init__(self) -> None:
        #: The policies of all regions by number, and the numbers of the regions that are installed in torch.
        self._regions: dict[int, Policy] = {}
        self._regions_in_torch: set[int] = set()
        #: The numbers of regions by the arguments of `autocast`, if these say everything. All of them are installed.
        self.numbers: dict[tuple[Any, ...], int] = {}
        #: The arguments of ``convert`` and what they came to, while it is in force.
        self.described: dict[str, Any] | None = None
        #: True if this module, and no other copy of it, made the core change torch.
        self._is_ours = False
        self._are_patches_in = False
        self._composites: dict[Any, Composite] = {}
        #: Those that look at all calls now: while there are any, the core also handles operations without a rule. The
        #: last function among them gets each call, and makes it.
        self._observers: dict[object, _Observer] = {}
        self._rules_in_modules = RulesInModules(lambda number: self.policy_of_region(number) if number else self.policy)
        kept.listen(self._follow_modules)

    @property
    def policy(self) -> Policy | None:
        """The policy of convert. The core has the only record of it, whatever interrupts a change."""
        policy: Policy | None = _core.installed_policy()
        return policy

    @cached_property
    def _patches(self) -> Patches:
        """Created on first use, with the imports that they need: a program may import this package only for its
        kernels."""
        from habana_mp.patches.all import Patches, all_patches

        return Patches(all_patches())

    def install(self, given: Policy | None, options: Options | None = None, described: Any = None) -> None:
        """Replaces convert's policy by this one, or by none. After an error before torch is changed the previous policy
        stays; after a later error nothing is installed."""
        policy = given or Policy(lower="bf16")
        settings = Settings(options or Options(), policy.exact)
        with locks.installation:
            self.check_alone()
            _bind()
            # All that can fail is done before anything is changed; the core checks everything before its first store.
            composites = self._make_composites(policy)
            plan = rules.plan(policy)
            self._patches.check(settings)
            if given is not None:
                warn_if_in_autocast()
            self._store(
                lambda: _core.install(plan, given, within_modules=not settings.options.lowers_everywhere),
                is_whole=True,
            )
            try:
                self._put_patches_in(settings)
                forget_compiled_code()
                self._rules_in_modules.forget_warnings()
                self._follow_modules()
                self.described = described
                self._exchange_composites(composites)
                if self._observers:
                    self._observe()
            except BaseException:
                self.uninstall() if given is None else self.restore()
                raise

    def set_observer(self, kind: _Observer, owner: object, *, is_on: bool) -> None:
        """Begins or stops to handle operations without a rule: those that this kind of observer looks at."""
        with locks.installation:
            self._observers.update({owner: kind}) if is_on else self._observers.pop(owner, None)
            self._observe()

    def _observe(self) -> None:
        """Updates what the core handles for those that look at all calls. A record and a diagnosis need that and the
        patches, without any lists. For the others torch stays unchanged while no lists are in force. Nothing stays if
        nothing is needed."""
        kinds, functions = set(self._observers.values()), [one for one in self._observers if callable(one)]
        _core.observe_calls(functions[-1] if functions else None)
        needs_patches = bool(kinds & {"record", "diagnosis"})
        if needs_patches and not self._is_ours:
            self.install(None)
        elif self._is_ours and (self.policy is not None or self._regions_in_torch or needs_patches):
            watched = rules.plan_of_observed() if kinds - {"guard"} else []
            guarded = rules.plan_of_guarded() if kinds - {"watch"} else []
            _core.observe(watched + guarded)
        elif self._is_ours:
            self.uninstall()

    def make_region(self, policy: Policy, *, on_cpu: bool, caches_weights: bool, name: str, after_tracked: Any) -> int:
        """Returns the number of a new region with these rules, ready to be entered."""
        with locks.installation:
            self.check_alone()
            _bind()
            composites = self._make_composites(policy)
            plan = rules.plan(policy, caches_weights=caches_weights)
            self._check_patches()
            number = self._store(
                lambda: _core.make_region(plan=plan, on_cpu=on_cpu, name=name, after_tracked_cast=after_tracked)
            )
            self._regions[number] = policy
            self._add_region(number, composites)
            return number

    def put_in_region(self, number: int) -> None:
        """Makes a region ready to be entered again after :meth:`uninstall`."""
        with locks.installation:
            self.check_alone()
            composites = self._make_composites(self._regions[number])
            self._check_patches()
            self._store(lambda: _core.put_in_region(number))
            self._add_region(number, composites)

    def _store(self, change: Callable[[], _R], *, is_whole: bool = False) -> _R:
        """Lets the core change torch: everything if ``is_whole``, else the part of one region."""
        changes, was_ours = _core.change_count(), self._is_ours
        self._is_ours = True
        try:
            changed = change()
            _set_equivalent_functions()
            return changed
        except BaseException:  # a signal handler may raise after the change
            if _core.change_count() == changes:
                self._is_ours = was_ours
            elif is_whole or self.policy is None:
                self.uninstall()
            raise

    def _add_region(self, number: int, composites: dict[Any, Composite]) -> None:
        self._regions_in_torch.add(number)
        try:
            if not self._are_patches_in:
                self._put_patches_in(Settings())
            self._follow_modules(anew=False)
            self._exchange_composites(composites)
            if self._observers:
                self._observe()
        except BaseException:
            if self.policy is None:
                self.uninstall()
            raise

    def _check_patches(self) -> None:
        """Raises if the patches that a region needs cannot be installed."""
        if not self._are_patches_in:
            self._patches.check(Settings())

    def _put_patches_in(self, settings: Settings) -> None:
        self._patches.install(settings)
        self._are_patches_in = True

    def _policies(self) -> list[Policy]:
        regions = [self._regions[number] for number in self._regions_in_torch]
        return regions if self.policy is None else [self.policy, *regions]

    def _follow_modules(self, *, anew: bool = True) -> None:
        """Makes the rules depend on the running module, if lines with patterns, kept modules or exact code ask for it.
        (In an exported program the callers are unknown, and no list may lower exact code once more.) Unless ``anew``,
        what was found for the running modules stays."""
        with locks.installation:
            policies = self._policies() if self._is_ours else []
            steered = bool(policies) and (kept.are_there_kept() or any(one.module_rules for one in policies))
            if steered or (any(one.exact.names for one in policies) and can_tap()):
                if anew or not self._rules_in_modules.is_on:
                    self._rules_in_modules.begin()
                    forget_compiled_code()
            else:
                self._rules_in_modules.end()

    def policy_of_region(self, number: int) -> Policy | None:
        """Returns the policy of a region."""
        return self._regions.get(number)

    def check_alone(self) -> None:
        """Raises RuntimeError if another copy of this module has changed torch. All copies share one core, and this one
        cannot undo the changes of another."""
        with locks.installation:
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
            self._composites[function].uninstall()
            del self._composites[function]  # not before: after an error `uninstall` must find it
        self._composites |= made  # before they are installed, so that `uninstall` finds them even after a signal
        for replacement in made.values():
            replacement.install()

    def end_policy(self) -> None:
        """Ends convert's policy. Keeps what regions and records need."""
        with locks.installation:
            self.install(None) if self._regions_in_torch else self.restore()

    def restore(self) -> None:
        """Uninstalls all but what open records and diagnoses need."""
        with locks.installation:
            self.uninstall()
            self._observe()

    def uninstall(self) -> None:
        """Restores torch as it was before the first :meth:`install`. Open regions then cast nothing.

        The core is the last: if anything interrupts this before, another call completes it.
        """
        with locks.installation:
            self._rules_in_modules.end()
            self._are_patches_in = False
            self._regions_in_torch = set()
            self.numbers.clear()
            if "_patches" in vars(self):
                self._patches.uninstall()
            forget_compiled_code()
            for composite in self._composites.values():
                composite.uninstall()
            self._composites = {}
            self.described = None
            _core.uninstall()
            self._is_ours = False


def _bind() -> None:
    bind_torch()
    _core.set_region_device(
        REGION_DEVICE, REGION_DEVICE_NUMBER, REGION_DTYPES, torch.set_autocast_enabled, torch.set_autocast_dtype
    )


def _set_equivalent_functions() -> None:
    """Passes the core the functions that it calls in place of methods with rules, as they are faster. Without one, the
    method is called."""
    pairs = {
        getattr(torch._C.TensorBase, method, None): getattr(torch._C._VariableFunctions, row.equivalent, None)
        for method, row in ops.rows().items()
        if row.equivalent
    }
    _core.set_equivalent_functions({method: one for method, one in pairs.items() if method and one})


installation = Installation()
