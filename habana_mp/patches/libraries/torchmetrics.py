"""torchmetrics sums values that are compared to the last digit."""

from __future__ import annotations

import functools
from typing import Any

from habana_mp.patches.tools.in_float32 import exactly
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_library

EXACT_PACKAGES = ("torchmetrics",)

_FUNCTIONS = assumption_of_library("torchmetrics", "update and compute metrics, and are exact")


def given_exact_method(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that takes an object and a method, and returns what replaces the method on the object."""
    owner, method = (*arguments, *keywords.values())

    @functools.wraps(method)
    def exact(*given: Any, **named: Any) -> Any:
        return exactly(method, given, named)

    return original(owner, exact)


_WRAPPERS: Table = {"torchmetrics.metric": ("Metric._wrap_update", "Metric._wrap_compute")}
EXCHANGES = (Exchange(given_exact_method, _WRAPPERS, _FUNCTIONS, positional=2),)
