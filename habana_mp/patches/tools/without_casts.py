"""Replacements for functions that run without casts (rule 11): they compute state, or prepare data."""

from __future__ import annotations

from typing import Any

from habana_mp.patches.tools.casts_off import casts_off
from habana_mp.patches.tools.region_dtypes import lists_apply


def without_casts(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that creates state or prepares data."""
    if not lists_apply():  # functions that prepare data call one another
        return original(*arguments, **keywords)
    with casts_off():
        return original(*arguments, **keywords)
