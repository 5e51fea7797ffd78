"""Gradients of every kind through the casts: as through casts by hand, and each in its leaf's own dtype."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp, ops
from helpers.cases import ADDED_UP, CASES, LATE_KERNELS, NO_KERNEL, Case, cast, is_product
from helpers.comparing import assert_same
from helpers.each import each
from helpers.gradients import gradients, leaf, low, small_layers
from helpers.lists import Converter
from helpers.probes import BF16, FP16, FP32, M, N

Loss = Callable[..., torch.Tensor]
#: No gradient at all, or (lstsq) one whose last bits depend on where the memory lies.
LEFT_OUT = {"geqrf", "linalg_matrix_rank", "linalg_lstsq", "_addmm_activation"}
ONE_FORM = list({case.name: case for case in CASES if case.name not in LEFT_OUT}.values())


def differing(converted: Converter, cases: list[tuple[Case, Any]], **lists: Any) -> list[str]:
    """The cases whose gradients, under a list of their name alone, differ from each of those expected."""
    wrong = []
    for case, expected in cases:
        converted(**{side: [case.name] for side in ("bf16", "fp32") if side in lists}, dtype=lists.get("dtype", BF16))
        got = gradients(case)
        hmp.restore()
        same = [[are_same(one, other) for one, other in zip(got, wanted, strict=True)] for wanted in expected]
        if not any(one and all(one) for one in same):
            wrong.append(f"{case}: {same}")
    return wrong


def are_same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one.nan_to_num(), other.nan_to_num()))


@pytest.mark.parametrize(("dtype", "cases"), [(BF16, ONE_FORM[::2]), (FP16, ONE_FORM[1::6])], ids=["bf16", "fp16"])
def test_gradients_of_lowered_operations_are_those_of_casts_by_hand(
    converted: Converter, dtype: torch.dtype, cases: list[Case]
) -> None:
    def by_hand(case: Case) -> list[list[torch.Tensor | None]]:
        if case.name in ADDED_UP:
            return [gradients(replace(case, call=lambda *inputs: cast(case.call(*inputs), dtype)))]
        try:
            found = [gradients(case, None if case.name in NO_KERNEL else dtype)]
        except RuntimeError:
            assert case.name in LATE_KERNELS
            return [gradients(case)]
        if is_product(case):  # it may also be rounded once, from a float32 sum
            wide = replace(case, call=lambda *inputs: cast(case.call(*cast(inputs, FP32)), dtype))
            with suppress(RuntimeError):  # the weights of a module are no inputs
                found.append(gradients(wide, dtype))
        return found

    # Those of a recurrent layer's weights are summed over the steps in float32: test_modules.py
    expected = [(case, by_hand(case)) for case in cases if not ops.row_of(case.name).is_recurrent]
    assert differing(converted, expected, bf16=True, dtype=dtype) == []


def test_gradients_of_operations_kept_in_float32_are_those_of_casts_by_hand(converted: Converter) -> None:
    lowered = [Case(one.name, one.form, one.call, one.cast(BF16), one.kept) for one in ONE_FORM]
    expected = [(case, [gradients(case, FP32)]) for case in lowered[::4] if case.name != "batch_norm"]
    assert differing(converted, expected, fp32=True) == []


TWICE: dict[str, tuple[Loss, Loss, list[str], list[str]]] = {
    "matmul": (lambda x: x @ x, lambda x: low(x) @ low(x), ["matmul"], []),
    "softmax": (lambda x: torch.softmax(low(x), -1), lambda x: torch.softmax(low(x).float(), -1), [], ["softmax"]),
    "normalize": (F.normalize, lambda x: F.normalize(low(x)), ["normalize"], []),
    "cross_entropy": (
        lambda x: F.cross_entropy(low(x), torch.arange(4)),
        lambda x: F.cross_entropy(low(x).float(), torch.arange(4)),
        [],
        ["cross_entropy"],
    ),
}


@each("name", TWICE)
def test_second_and_third_gradients_are_those_of_casts_by_hand(converted: Converter, name: str) -> None:
    function, by_hand, bf16, fp32 = TWICE[name]

    def derivatives(f: Loss) -> list[torch.Tensor]:
        x = leaf(M)
        loss, found = f(x).float().pow(3).sum(), []
        for _ in range(3):
            (loss,) = torch.autograd.grad(loss, x, create_graph=True)
            found.append(loss.detach())
            loss = loss.pow(2).sum()
        return found

    expected = derivatives(by_hand)
    converted(bf16=bf16, fp32=fp32)
    got = derivatives(function)
    assert_same(got, expected)
    assert {one.dtype for one in got} == {FP32}


def test_float64_passes_gradcheck_untouched() -> None:
    model = small_layers().double()
    x, y = leaf(M.double()), leaf(N.double())
    hmp.convert()
    assert torch.autograd.gradcheck(model, x)
    assert torch.autograd.gradgradcheck(torch.mm, (x, y))
    assert torch.autograd.gradcheck(
        lambda x: F.cross_entropy(F.softmax(x, -1), torch.arange(4)), x, check_forward_ad=True
    )


def test_writing_into_a_view_passes_the_gradient_of_both(converted: Converter) -> None:
    def run(product: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
        x, y = leaf(M), leaf(N)
        base = x.clone()
        base[1:3] = product(y, y)[1:3]
        base.t()[0].mul_(2)
        base.view(-1)[3:5].add_(product(x, y).view(-1)[:2])
        base.pow(2).sum().backward()
        return [x.grad, y.grad]

    expected = run(lambda a, b: (low(a) @ low(b)).float())
    converted(bf16=["mm"])
    assert_same(run(torch.mm), expected)


def test_changing_a_float32_input_after_its_cast_leaves_the_gradient_right(converted: Converter) -> None:
    x, other = leaf(M), N.clone()
    converted(bf16=["mm"])
    out = torch.mm(x, other)
    other.zero_()
    out.sum().backward()
    hmp.restore()
    assert_same(x.grad, (torch.ones(4, 4).bfloat16() @ N.bfloat16().t()).float())
