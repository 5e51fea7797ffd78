"""Replacements for functions that run in float32."""

from __future__ import annotations

from typing import Any

from habana_mp.patches.tools import precision_of_values as precision
from habana_mp.patches.tools.casts_off import casts_off
from habana_mp.patches.tools.precision_of_values import is_packed_sequence
from habana_mp.patches.tools.pytree import tree_map
from habana_mp.patches.tools.region_dtypes import lists_apply


def in_float32(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function with a kernel for float32 only."""
    if lists_apply():
        arguments, keywords = tree_map(precision.in_float32, (arguments, keywords), is_leaf=is_packed_sequence)
    return original(*arguments, **keywords)


def exactly(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that runs with its tensors in float32, and without casts."""
    if not lists_apply():
        return original(*arguments, **keywords)
    arguments, keywords = tree_map(precision.in_float32, (arguments, keywords), is_leaf=is_packed_sequence)
    with casts_off():
        return original(*arguments, **keywords)
