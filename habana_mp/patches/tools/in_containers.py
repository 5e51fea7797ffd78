"""Tensors in tuples, lists, dicts and dataclasses, made float32. torch.compile reads these functions.

No other container is looked into, as a cache of keys and values. torch's pytree knows more, and what it knows depends
on the libraries that are imported.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch

#: Tensors, and what they became.
Converted = list[tuple[torch.Tensor, torch.Tensor]]


def in_float32(result: Any, given: Any, dtype: torch.dtype, converted: Converted) -> Any:
    """Returns the result with its tensors of this dtype in float32, unless an argument holds such a tensor. Fills
    ``converted``."""
    return result if _holds(given, dtype) else _made(result, dtype, converted)


def _holds(value: Any, dtype: torch.dtype) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dtype is dtype
    return any(_holds(one, dtype) for one in _parts(value))


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _parts(value: Any) -> list[Any]:
    """Returns what is in a container; nothing for any other value."""
    if isinstance(value, (tuple, list)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if _is_dataclass(value):
        return [getattr(value, one.name, None) for one in dataclasses.fields(value)]
    return []


def _made(value: Any, dtype: torch.dtype, converted: Converted) -> Any:
    """Returns the value, or another one of its class if something in it was converted."""
    if isinstance(value, torch.Tensor):
        return _made_of_tensor(value, dtype, converted)
    before = _parts(value)
    after = [_made(one, dtype, converted) for one in before]
    if all(one is other for one, other in zip(before, after, strict=True)):
        return value
    if isinstance(value, (tuple, list)):
        return type(value)(*after) if hasattr(value, "_fields") else type(value)(after)
    if torch.compiler.is_dynamo_compiling():  # which cannot copy
        return type(value)(**_named(value, after)) if _is_dataclass(value) else type(value)(_named(value, after))
    made = copy.copy(value)
    if isinstance(value, dict):
        for name, one in zip(value, after, strict=True):
            made[name] = one
        return made
    for name, one in _named(value, after).items():
        object.__setattr__(made, name, one)
    return made


def _named(value: Any, after: list[Any]) -> dict[str, Any]:
    names = value if isinstance(value, dict) else [one.name for one in dataclasses.fields(value)]
    return dict(zip(names, after, strict=True))


def _made_of_tensor(value: torch.Tensor, dtype: torch.dtype, converted: Converted) -> torch.Tensor:
    if value.dtype is not dtype:
        return value
    for before, after in converted:
        if before is value:
            return after
    made = value.float()
    converted.append((value, made))
    return made
