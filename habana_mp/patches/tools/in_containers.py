"""Tensors in tuples, lists, dicts and dataclasses, made float32. torch.compile reads these functions.

No other container is looked into, as a cache of keys and values. torch's pytree knows more, and what it knows depends
on the libraries that are imported.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch


def holds_dtype(value: Any, dtype: torch.dtype, seen: set[int] | None = None) -> bool:
    """True if a tensor of this dtype is in the value."""
    if isinstance(value, torch.Tensor):
        return value.dtype is dtype
    parts = _parts(value)
    if not parts or _is_seen(value, seen := set() if seen is None else seen):
        return False
    return any([holds_dtype(one, dtype, seen) for one in parts])  # noqa: C419  # Dynamo reads no generator


class InFloat32:
    """Makes values of results, with their tensors of one dtype in float32. Each tensor and each container is made
    once."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        #: Tensors, and what they became.
        self.tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        #: What containers became, by their ids; while one is made, itself.
        self._made: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        """Returns the value, or another one of its class if something in it was converted."""
        return self._of(value)[0]

    def _of(self, value: Any) -> tuple[Any, bool]:
        """Returns the value, and whether it is another one."""
        if isinstance(value, torch.Tensor):
            return (self._of_tensor(value), True) if value.dtype is self._dtype else (value, False)
        before = _parts(value)
        if not before:
            return value, False
        in_graph = torch.compiler.is_dynamo_compiling()
        if not in_graph and id(value) in self._made:
            made = self._made[id(value)]
            return made, made is not value
        if not in_graph:
            self._made[id(value)] = value
        after, changed = [], False
        for one in before:
            part, is_other = self._of(one)
            after.append(part)
            changed = changed or is_other
        if not changed:
            return value, False
        made = _rebuilt_in_graph(value, after) if in_graph else _rebuilt(value, after)
        if not in_graph:
            self._made[id(value)] = made
        return made, True

    def _of_tensor(self, value: torch.Tensor) -> torch.Tensor:
        for before, after in self.tensors:
            if before is value:
                return after
        made = value.float()
        self.tensors.append((value, made))
        return made


def _is_seen(value: Any, seen: set[int]) -> bool:
    if torch.compiler.is_dynamo_compiling():
        return False
    if id(value) in seen:
        return True
    seen.add(id(value))
    return False


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


def _named(value: Any, after: list[Any]) -> dict[Any, Any]:
    names = value if isinstance(value, dict) else [one.name for one in dataclasses.fields(value)]
    return dict(zip(names, after, strict=True))


def _rebuilt(value: Any, after: list[Any]) -> Any:
    """Returns a copy of the container with these parts, or the container itself if its class refuses."""
    try:
        if isinstance(value, tuple):
            return type(value)(*after) if hasattr(value, "_fields") else type(value)(after)
        made = copy.copy(value)
        if isinstance(value, list):
            made[:] = after
        elif isinstance(value, dict):
            for name, one in _named(value, after).items():
                made[name] = one
        else:
            for name, one in _named(value, after).items():
                object.__setattr__(made, name, one)
    except Exception:  # a class of the user's may raise anything
        return value
    return made


def _rebuilt_in_graph(value: Any, after: list[Any]) -> Any:
    """The same, where Dynamo reads. It cannot copy: other classes stay as they are."""
    if isinstance(value, (tuple, list)) and (type(value) in (tuple, list) or hasattr(value, "_fields")):
        return type(value)(*after) if hasattr(value, "_fields") else type(value)(after)
    if _is_dataclass(value) and all([one.init for one in dataclasses.fields(value)]):  # noqa: C419  # as above
        return type(value)(**_named(value, after))
    return _named(value, after) if type(value) is dict else value
