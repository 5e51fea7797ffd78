"""The states in which contenders run: hmp.convert, torch.autocast, and functions patched in Python."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from habana_mp import hmp


@contextmanager
def converted(**options: Any) -> Iterator[None]:
    hmp.convert(**options)
    try:
        yield
    finally:
        hmp.restore()


@contextmanager
def converted_but_disabled() -> Iterator[None]:
    with converted(), hmp.disable_casts():
        yield


def autocast(device: str = "cpu") -> torch.autocast:
    return torch.autocast(device, dtype=torch.bfloat16)


@contextmanager
def region() -> Iterator[None]:
    """A region of hmp.autocast, without convert."""
    with hmp.autocast("cpu", dtype=torch.bfloat16):
        yield
    hmp.restore()


@contextmanager
def outside_of_regions() -> Iterator[None]:
    """The patches that regions need are installed, and no region is open."""
    with hmp.autocast("cpu"):
        pass
    yield
    hmp.restore()


#: A patch in Python has to name each of these. It misses aliases that were imported before.
_PATCHED: list[tuple[Any, str]] = [
    (F, "linear"),
    (F, "conv2d"),
    (torch, "matmul"),
    (torch.Tensor, "matmul"),
    (torch.Tensor, "__matmul__"),
]


def _lowering(function: Callable[..., Any]) -> Callable[..., Any]:
    def lowered(value: Any) -> Any:
        return value.bfloat16() if isinstance(value, torch.Tensor) and value.dtype is torch.float32 else value

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*map(lowered, args), **{name: lowered(value) for name, value in kwargs.items()})

    return wrapper


@contextmanager
def patched_in_python() -> Iterator[None]:
    """Patches torch in the way of apex's O1: replaces attributes by Python functions that cast their arguments."""
    originals = [(holder, name, name in vars(holder), getattr(holder, name)) for holder, name in _PATCHED]
    for holder, name, _, original in originals:
        setattr(holder, name, _lowering(original))
    try:
        yield
    finally:
        for holder, name, own, original in originals:
            if own:
                setattr(holder, name, original)
            else:
                delattr(holder, name)
