"""What ``within`` of ``convert`` comes to."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from habana_mp.patches.base import Within

#: What ``within`` of ``convert`` may be.
Given = str | torch.nn.Module | Iterable[torch.nn.Module] | None


def checked(within: Given) -> Within:
    """What ``within`` comes to.

    Raises:
        ValueError: it is none of what it may be.
    """
    if within is None or (isinstance(within, str) and within == "modules"):
        return within  # type: ignore[return-value]  # that very string
    if isinstance(within, torch.nn.Module):
        return [within]
    try:
        modules = [] if isinstance(within, str) else list(within)
    except TypeError:
        modules = []
    wrong = next((one for one in modules if not isinstance(one, torch.nn.Module)), within)
    if not modules or wrong is not within:
        what = 'None, "modules", a module or a list of modules'
        raise ValueError(f"`within` must be {what}; got {type(wrong).__name__}: {wrong!r}")
    return modules
