"""Operations that torch implements in Python (``F.normalize``, ``F.softmin``, ``Tensor.__rtruediv__``).

While lists apply to such a function, its code object is replaced by one that passes each call to the core. The core
calls a copy of the function that has the original code.
"""

from __future__ import annotations

import types
from operator import attrgetter
from typing import Any

from habana_mp import _core
from habana_mp.patches.tools.exchange import untouched
from habana_mp.patches.tools.patch import Settings
from habana_mp.patches.tools.when_imported import NO_SETTINGS, WhenImported
from habana_mp.patches.torch.dynamo import can_change


class Composite(WhenImported):
    """A Python function of torch that lists apply to. Dynamo puts its calls into a graph without reading its code, as
    it already does for most torch functions."""

    name = "torch._dynamo.trace_rules"

    def __init__(self, function: types.FunctionType, operation: str) -> None:
        super().__init__()
        self._function = function
        self._composite = _core.Composite(function, untouched(function), operation)
        self._is_known = True

    def install(self, settings: Settings = NO_SETTINGS) -> None:
        self.exchanged.replace(self._function, lambda _, *given: self._composite.call(*given))
        super().install(settings)

    def do(self, module: Any) -> None:
        parts = attrgetter("_allowed_callable_ids.add", "_allowed_callable_ids.remove", "is_callable_allowed")
        if can_change("allowed functions", lambda: all(map(callable, parts(module)))):
            self._is_known = module.is_callable_allowed(self._function)
            if not self._is_known:
                module._allowed_callable_ids.add(id(self._function))

    def undo(self, module: Any) -> None:
        if not self._is_known:
            module._allowed_callable_ids.remove(id(self._function))
            self._is_known = True
