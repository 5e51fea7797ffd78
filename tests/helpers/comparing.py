"""Asserts that two results are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from habana_mp import hmp


def seeded(call: Callable[[], Any]) -> Any:
    """Returns the result of ``call``, made with the same random numbers each time."""
    torch.manual_seed(0)
    return call()


def tensors(value: Any) -> list[torch.Tensor]:
    """Returns the tensors in nested lists, tuples and dictionaries."""
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]


def assert_same(result: Any, expected: Any, *, close: bool = False) -> None:
    """Asserts equal dtypes, shapes and values. ``close`` is for results of LAPACK that depend on the address of the
    memory."""
    got, wanted = tensors(result), tensors(expected)
    assert len(got) == len(wanted) > 0
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype is other.dtype
        if close:
            torch.testing.assert_close(one, other)
        else:
            assert torch.equal(one, other)


def assert_near(result: torch.Tensor, expected: torch.Tensor) -> None:
    """Asserts a few roundings: torch rounds within the sums of a convolution where it lacks instructions."""
    assert (result.float() - expected.float()).norm() < 0.02 * expected.float().norm()


def assert_unchanged(call: Callable[[], Any], *, close: bool = False, **options: Any) -> None:
    """Asserts that a call gives the same under `convert` with these options as in plain torch."""
    expected = seeded(call)
    hmp.convert(**options)
    assert_same(seeded(call), expected, close=close)


def assert_close(result: Any, expected: Any) -> None:
    """Asserts equal dtypes, and values within bfloat16's precision: Inductor keeps float32 between fused operations."""
    for one, other in zip(tree_leaves(result), tree_leaves(expected), strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other, rtol=3e-2, atol=1e-2)
