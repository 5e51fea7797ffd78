"""Casts that torch's own autocast makes within an operation, where autograd records: the same as casts by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch._refs
import torch.nn.functional as F

from habana_mp import hmp, ops
from helpers.each import each
from helpers.lists import Converter


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def state_of_autocast() -> tuple[bool, torch.dtype, bool]:
    return torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()


CALLS: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = {
    "linear": (F.linear, [(3, 8), (5, 8), (5,)]),
    "matmul": (torch.matmul, [(2, 3, 8), (8, 5)]),
    "__matmul__": (lambda a, b: a @ b, [(3, 8), (8, 5)]),
    "mm": (torch.mm, [(3, 8), (8, 5)]),
    "bmm": (torch.bmm, [(2, 3, 8), (2, 8, 5)]),
    "addmm": (torch.addmm, [(3, 5), (3, 8), (8, 5)]),
    "baddbmm": (torch.baddbmm, [(2, 3, 5), (2, 3, 8), (2, 8, 5)]),
    "addbmm": (torch.addbmm, [(3, 5), (2, 3, 8), (2, 8, 5)]),
    "conv1d": (F.conv1d, [(2, 3, 9), (4, 3, 3), (4,)]),
    "conv2d": (F.conv2d, [(2, 3, 9, 9), (4, 3, 3, 3), (4,)]),
    "conv3d": (F.conv3d, [(2, 3, 5, 5, 5), (4, 3, 3, 3, 3), (4,)]),
    "conv_transpose1d": (F.conv_transpose1d, [(2, 3, 9), (3, 4, 3), (4,)]),
    "conv_transpose2d": (F.conv_transpose2d, [(2, 3, 9, 9), (3, 4, 3, 3), (4,)]),
    "conv_transpose3d": (F.conv_transpose3d, [(2, 3, 5, 5, 5), (3, 4, 3, 3, 3), (4,)]),
}


def test_every_operation_of_the_table_is_tested() -> None:
    assert set(CALLS) == {name for name, row in ops.rows().items() if row.casts_inside}


@each("dtype", [torch.bfloat16, torch.float16])
@each("name", CALLS)
def test_results_and_gradients_are_those_of_casts_by_hand(converted: Converter, name: str, dtype: torch.dtype) -> None:
    call, shapes = CALLS[name]
    inputs = [leaf(*shape, seed=i) for i, shape in enumerate(shapes)]
    lower = [one.to(dtype) for one in inputs]
    # By torch's function for that precision, or as a float32 sum that is rounded once.
    by_hand = [call(*lower), call(*(one.float() for one in lower)).to(dtype)]
    wanted = [[one, *torch.autograd.grad(one.float().square().sum(), inputs, retain_graph=True)] for one in by_hand]
    converted(bf16=[name], dtype=dtype)
    result = call(*inputs)
    hmp.restore()
    assert result.dtype is dtype
    made = [result, *torch.autograd.grad(result.float().square().sum(), inputs)]
    assert any(all(map(torch.equal, made, one)) for one in wanted)


@pytest.mark.filterwarnings("ignore::habana_mp.hmp.HmpWarning")
@pytest.mark.parametrize("outside", [None, torch.bfloat16, torch.float16])
def test_torchs_own_state_is_as_it_was(converted: Converter, outside: torch.dtype | None) -> None:
    x, w = leaf(3, 8), leaf(8, 5)
    converted(bf16=["matmul"])
    with torch.autocast("cpu", dtype=outside, enabled=outside is not None):
        before = state_of_autocast()
        assert torch.mm(x, w).dtype is (outside or torch.float32)
        if outside is not None:
            assert (x @ w).dtype is outside  # autocast acts after the lists
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.matmul(x, x)
        assert state_of_autocast() == before


@pytest.mark.filterwarnings("ignore::habana_mp.hmp.HmpWarning")
def test_a_leaf_that_changes_is_cast_anew(converted: Converter) -> None:
    x, w = leaf(3, 8), leaf(8, 5)
    converted(bf16=["matmul"])
    with torch.autocast("cpu", cache_enabled=True):
        for step in range(3):
            with torch.no_grad():
                x.fill_(step)
            assert torch.equal(x @ w, x.detach().bfloat16() @ w.detach().bfloat16())


def test_a_float64_input_and_a_subclass_are_left_to_the_rules(converted: Converter) -> None:
    class Mine(torch.Tensor):
        pass

    x, w = leaf(3, 8), leaf(8, 5)
    converted(bf16=["matmul"])
    assert torch.matmul(x.double(), w.double()).dtype is torch.float64
    assert torch.matmul(x.as_subclass(Mine), w).dtype is torch.bfloat16
    meta = torch.empty(3, 8, device="meta", requires_grad=True)
    assert torch.matmul(meta, torch.empty(8, 5, device="meta")).dtype is torch.bfloat16
