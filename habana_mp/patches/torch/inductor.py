"""Inductor: the table of kernels that its code calls at run time.

Code that Inductor generated calls torch's builtins (``extern_kernels.convolution(...)``). The casts were decided when
the graph was traced. Handling these calls again would cast a second time, and a kernel would read memory in a
precision that the surrounding code does not expect. So Inductor gets builtins without rules.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from habana_mp import _core
from habana_mp.common.ledger import Assumption, holds
from habana_mp.patches.tools.when_imported import WhenImported

_TABLE = Assumption(
    "torch.inductor-kernels",
    assumed="`torch._inductor.select_algorithm.extern_kernels` has, as attributes, the builtins that Inductor calls",
    check="it is an object of a class of torch's own, and has attributes of its own",
    otherwise="these calls are answered as others, by what holds where the lists are silent",
)


class KernelTable(WhenImported):
    """Puts unpatched copies of torch's builtins in the table that Inductor's code calls at run time."""

    name = "torch._inductor.select_algorithm"
    _originals: Mapping[str, Any] = types.MappingProxyType({})

    def do(self, module: Any) -> None:
        if not holds(_TABLE, lambda: _is_as_expected(module.extern_kernels)):
            return
        kernels = module.extern_kernels
        originals = self._originals = {}

        def set_untouched(namespace: Any, name: str, value: Any) -> None:
            if type(value) is types.BuiltinFunctionType:
                originals[name] = value
                value = _core.unpatched_copy(value)
            object.__setattr__(namespace, name, value)

        # Kernels are added to the table when lowerings are registered, so later ones must be replaced too.
        self.exchanged.exchange(type(kernels), "__setattr__", set_untouched)
        for name, value in list(vars(kernels).items()):
            setattr(kernels, name, value)

    def undo(self, module: Any) -> None:
        for name, original in self._originals.items():
            object.__setattr__(module.extern_kernels, name, original)


def _is_as_expected(kernels: Any) -> bool:
    return type(kernels).__module__.startswith("torch.") and isinstance(vars(kernels), dict)
