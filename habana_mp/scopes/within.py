"""Checks the argument ``within`` of ``convert``, and that no other argument is a model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from habana_mp.common.misuse import check_keywords, not_a_block
from habana_mp.patches.tools.patch import Within

_F = TypeVar("_F", bound=Callable[..., Any])

#: The values that ``within`` of ``convert`` accepts.
Given = str | torch.nn.Module | Iterable[torch.nn.Module] | None


def checked(within: Given) -> Within:
    """Returns ``within`` in its final form: None, ``"modules"`` or a list of modules.

    Raises:
        ValueError: any other value.
    """
    if within is None or (isinstance(within, str) and within == "modules"):
        return within  # type: ignore[return-value]  # the literal
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


def reject_models(convert: _F) -> _F:
    """Makes ``convert`` raise TypeError for a model or an optimizer, which ``apex.amp.initialize`` takes, and for
    misspelled keywords. Its result raises in a ``with`` statement, and says why."""

    @functools.wraps(convert)
    def checking(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *(value for name, value in kwargs.items() if name not in ("within", "exact"))]
        found = [type(one).__name__ for value in given for one in _of_a_model(value)]
        if found:
            raise TypeError(
                "`hmp.convert` takes no model and no optimizer: it works on all of torch, whatever the model, and "
                "returns nothing. Write `hmp.convert()`, or `hmp.convert(within=model)` to lower only while the "
                f"model's forward runs; got {', '.join(found)}"
            )
        check_keywords(convert, kwargs)
        convert(*args, **kwargs)
        return not_a_block

    return checking  # type: ignore[return-value]  # the same parameters


def _of_a_model(value: object) -> list[object]:
    """Returns the modules and optimizers that a value is, or holds."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [one for one in values if isinstance(one, (torch.nn.Module, torch.optim.Optimizer))]
