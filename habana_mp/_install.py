"""Putting a policy into torch, and taking it out again without a trace."""

from __future__ import annotations

import threading

from habana_mp import _core, _policy
from habana_mp._checkpoint import checkpoint_replacement
from habana_mp._compiled import Compiled
from habana_mp._composites import Replacement, composite
from habana_mp._exchanged import Exchanged
from habana_mp._places import Places
from habana_mp._replicas import parallel_apply_replacement
from habana_mp._weights import Weights

_lock = threading.RLock()


class Installation:
    """What is in torch now. There is one for the process, as there is one torch."""

    def __init__(self) -> None:
        self.policy: _policy.Policy | None = None
        self._replacements: list[Replacement] = []
        self._places = Places()
        self._compiled = Compiled()
        self._exchanged = Exchanged()
        self._weights = Weights()

    def install(self, policy: _policy.Policy) -> None:
        """Replace what is installed by ``policy``. When that fails, what was installed before stays."""
        with _lock:
            self.check_alone()
            _core.bind_torch()
            # Whatever can fail is made before anything is changed; the core checks everything before its first store.
            replacements = self._make_replacements(policy)
            _core.install(_policy.plan(policy))
            try:
                self._places.install()
                self._compiled.install(lists_hold_operators=policy.lists_hold_operators)
                self._exchanged.install()
                self._weights.install(
                    on=policy.weight_cache, limit=policy.weight_cache_limit, packed=policy.packed_weights
                )
                _core.set_skips_slower(policy.skip_slower)
            except BaseException:
                self.uninstall()
                raise
            for replacement in replacements:
                replacement.install()
            self._replacements = replacements
            self.policy = policy

    def check_alone(self) -> None:
        """The core is one for the process. A second copy of this module knows nothing of what the first has changed."""
        with _lock:
            if self.policy is None and _core.installed_count() != 0:
                raise RuntimeError(
                    "habana_mp was imported a second time while the first import is converted; call `restore()` of "
                    "the first one, or start a new process"
                )

    def _make_replacements(self, policy: _policy.Policy) -> list[Replacement]:
        # They are made of the functions as torch has them, so those of the former policy go first.
        former = self._replacements
        for replacement in former:
            replacement.uninstall()
        try:
            made = [
                composite(one.builtin.object, one.operation, one.listed.rule(one.operation))
                for one in policy.composites
            ]
            made += [checkpoint_replacement(), parallel_apply_replacement()]
        except BaseException:
            for replacement in former:
                replacement.install()
            raise
        self._replacements = []
        return made

    def uninstall(self) -> None:
        """Torch is as it was before the first :meth:`install`."""
        with _lock:
            self._places.uninstall()
            self._compiled.uninstall()
            self._exchanged.uninstall()
            self._weights.uninstall()
            _core.set_skips_slower(False)
            for replacement in self._replacements:
                replacement.uninstall()
            self._replacements = []
            _core.uninstall()
            self.policy = None


installation = Installation()
