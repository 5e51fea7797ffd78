"""A layer whose weight changes between calls: the expected results, and the actual ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import processor
from helpers.comparing import assert_same
from helpers.weight_changes import MAIN, POINTERS, PREPARED, WAYS
from helpers.weight_changes.basics import SIZE, Change, layer

BF16 = torch.bfloat16

MODES: dict[str, Callable[[], Any]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}
#: Marks of tests that compare results with those of casts by hand, bit for bit, whatever torch warns of.
as_by_hand_marks = [
    pytest.mark.usefixtures("one_thread", "alike"),
    pytest.mark.filterwarnings(
        "ignore:torch.autocast is enabled", "ignore:TypedStorage is deprecated", "ignore:`torch.jit.script"
    ),
]
X = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(1))
Use = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
every_mode = pytest.mark.parametrize("mode", MODES)
main_ways = pytest.mark.parametrize("way", MAIN)


def orders_of(way: str) -> tuple[int, ...]:
    """All elements first, then a single one. A single value that is written through a pointer is not seen."""
    return (1, 1) if way in POINTERS else (1, 2, 1) if way in PREPARED else (1, 2)


def backward(result: torch.Tensor) -> None:
    result.backward(torch.linspace(-1, 1, result.numel()).reshape(result.shape).to(result.dtype))


def used(of: nn.Linear, mode: str, use: Use | None = None, x: torch.Tensor = X) -> torch.Tensor:
    """Returns the result of the layer, after its backward."""
    of.zero_grad()
    with MODES[mode]():
        result = of(x) if use is None else use(x, of.weight, of.bias)
    if result.requires_grad:
        backward(result)
    return result.detach()


def as_by_hand(
    of: nn.Linear,
    mode: str,
    dtype: torch.dtype = BF16,
    use: Use | None = None,
    hand: Use | None = None,
    kernels: Use | None = None,
) -> torch.Tensor:
    """Returns the result of the layer. Asserts that it and the gradients are the same as with a new cast of the weight.

    The result may also be the result of the package's ``kernels``, which may sum in another order than torch."""
    x, mine = X.clone().requires_grad_(), X.clone().requires_grad_()
    result = used(of, mode, use, x)
    weight, bias = (one.detach().clone().requires_grad_(one.requires_grad) for one in (of.weight, of.bias))
    with MODES[mode](), processor.by_hand():
        wanted = (hand or use or F.linear)(mine.to(dtype), weight.to(dtype), bias.to(dtype))
        ours = None if kernels is None else kernels(*(one.detach().to(dtype) for one in (mine, weight, bias)))
    if ours is None or not torch.equal(result, ours):
        assert_same(result, wanted.detach())
    if mode == "grad":
        backward(wanted)
        for one, other in ((x, mine), (of.weight, weight), (of.bias, bias)):
            if other.grad is not None and one.is_leaf:
                assert_same(one.grad, other.grad)
        assert mine.grad is not None
    return result


def assert_seen(
    of: nn.Linear,
    change: Change,
    mode: str,
    n: int = 1,
    use: Use | None = None,
    then: str = "",
    *,
    in_part: bool = False,
    times: int = 3,
    **options: Any,
) -> None:
    """Uses the layer a few times, changes it (perhaps in a part that ``use`` does not read), and uses it again."""
    for _ in range(times):
        before = used(of, mode, use)
    change(n)
    now = as_by_hand(of, then or mode, use=use, **options)
    assert in_part or not torch.equal(now, before)


def assert_seen_in_all_modes(
    way: str,
    make: Callable[[], nn.Linear] = layer,
    *,
    befores: Iterable[int] = (0,),
    modes: Iterable[str] = MODES,
    **options: Any,
) -> None:
    """Prepares the change after so many uses of a new layer."""
    for before, mode in itertools.product(befores, modes):
        of = make()
        for _ in range(before):
            used(of, mode, options.get("use"))
        change = WAYS[way](of)
        for n in orders_of(way):
            assert_seen(of, change, mode, n, **options)
