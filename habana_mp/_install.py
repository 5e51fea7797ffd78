"""Putting a policy into torch, and taking it out again without a trace."""

from __future__ import annotations

import threading

from habana_mp import _core, _policy
from habana_mp._compiled import Compiled
from habana_mp._composites import Composite
from habana_mp._places import Places

_lock = threading.RLock()


class Installation:
    """What is in torch now. There is one for the process, as there is one torch."""

    def __init__(self) -> None:
        self.policy: _policy.Policy | None = None
        self._composites: list[Composite] = []
        self._places = Places()
        self._compiled = Compiled()

    def install(self, policy: _policy.Policy) -> None:
        """Replace what is installed by ``policy``. When that fails, what was installed before stays."""
        with _lock:
            _core.bind_torch()
            # Whatever can fail is made before anything is changed; the core checks everything before its first store.
            composites = self._make_composites(policy)
            _core.install(_policy.plan(policy))
            try:
                self._places.install()
                self._compiled.install()
            except BaseException:
                self.uninstall()
                raise
            for composite in composites:
                composite.install()
            self._composites = composites
            self.policy = policy

    def _make_composites(self, policy: _policy.Policy) -> list[Composite]:
        old = self._composites
        for composite in old:
            composite.uninstall()
        try:
            made = [
                Composite(one.builtin.object, one.operation, one.listed.rule(one.operation))
                for one in policy.composites
            ]
        except BaseException:
            for composite in old:
                composite.install()
            raise
        self._composites = []
        return made

    def uninstall(self) -> None:
        """Torch is as it was before the first :meth:`install`."""
        with _lock:
            self._places.uninstall()
            self._compiled.uninstall()
            for composite in self._composites:
                composite.uninstall()
            self._composites = []
            _core.uninstall()
            self.policy = None


installation = Installation()
