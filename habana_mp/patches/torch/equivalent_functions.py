"""Functions that the core calls in place of methods with rules: they are equivalent and faster."""

from __future__ import annotations

import torch

from habana_mp import _core, ops


def set_equivalent_functions() -> None:
    """Passes the core the functions for those methods that have rules by now. Without one, the method is called."""
    pairs = {
        getattr(torch._C.TensorBase, method, None): getattr(torch._C._VariableFunctions, row.equivalent, None)
        for method, row in ops.rows().items()
        if row.equivalent
    }
    _core.set_equivalent_functions({method: one for method, one in pairs.items() if method and one})
