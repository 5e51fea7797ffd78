"""Functions that the core calls in place of methods with rules: they are equivalent and faster."""

from __future__ import annotations

from typing import Any

import torch

from habana_mp import _core, ops
from habana_mp.common.ledger import Assumption, holds

_FUNCTIONS = Assumption(
    "torch.function-twins",
    assumed="`torch._C.TensorBase` and `torch._C._VariableFunctions` have the products as methods and as functions",
    check="each method and its function are there",
    otherwise="the methods themselves are called, which takes a little longer",
)


def set_equivalent_functions() -> None:
    """Passes the core the functions for those methods that have rules by now."""
    if holds(_FUNCTIONS, _equivalent_functions):
        _core.set_equivalent_functions(_equivalent_functions())


def _equivalent_functions() -> dict[Any, Any]:
    methods, functions = torch._C.TensorBase, torch._C._VariableFunctions
    return {
        getattr(methods, method): getattr(functions, row.equivalent)
        for method, row in ops.rows().items()
        if row.equivalent
    }
