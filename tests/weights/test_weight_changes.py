"""However a weight changes, the next call sees it: results and gradients are those of casting by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import _core, hmp
from habana_mp.patches.torch import weight_cache
from helpers.comparing import assert_same
from helpers.processes import in_threads
from helpers.processor import kernels_product
from helpers.seeing_changes import (
    MODES,
    Use,
    X,
    as_by_hand,
    as_by_hand_marks,
    assert_seen,
    assert_seen_in_all_modes,
    backward,
    every_mode,
    main_ways,
    orders_of,
    used,
)
from helpers.weight_changes import AT_ONCE, MAIN, POINTERS, PREPARED, WAYS
from helpers.weight_changes.basics import SIZE, Change, layer, write
from helpers.weights import products

BF16, FP16 = torch.bfloat16, torch.float16


pytestmark = as_by_hand_marks


@pytest.mark.parametrize("way", AT_ONCE)
def test_a_change_is_seen(way: str) -> None:
    hmp.convert()
    assert_seen_in_all_modes(way)


@pytest.mark.parametrize("way", PREPARED)
def test_a_change_prepared_before_convert_is_seen(way: str) -> None:
    layers = [layer() for _ in MODES]
    changes = [WAYS[way](of) for of in layers]
    hmp.convert()
    for of, change, mode in zip(layers, changes, MODES, strict=True):
        for n in orders_of(way):
            assert_seen(of, change, mode, n)


@pytest.mark.parametrize("way", PREPARED)
def test_a_change_prepared_before_or_after_the_first_calls_is_seen(way: str) -> None:
    hmp.convert()
    assert_seen_in_all_modes(way, befores=(0, 3))


@pytest.mark.parametrize("mapped", [False, True])
def test_a_change_of_a_loaded_weight_is_seen(mapped: bool, tmp_path: Path) -> None:
    torch.save(layer().state_dict(), tmp_path / "layer.pt")
    hmp.convert()
    for way in MAIN:
        if way == "storage emptied":  # torch resizes no storage that it loaded
            continue
        of = layer()
        of.load_state_dict(torch.load(tmp_path / "layer.pt", mmap=mapped), assign=True)
        change = WAYS[way](of)
        # An array of such a weight that was made before its first use counts as a pointer.
        for n in (1, 1) if way == "alias: numpy" else orders_of(way):
            assert_seen(of, change, "no_grad", n)


VIEWED: dict[str, Use] = {
    "all of it": lambda x, w, b: F.linear(x, w.view_as(w), b),
    "transposed": lambda x, w, b: torch.addmm(b, x, w.T),
    "a part": lambda x, w, b: F.linear(x, w[: SIZE // 2], b[: SIZE // 2]),
}


@pytest.fixture
def parts_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_cache, "LEAST_PART", 1)


@pytest.mark.usefixtures("parts_of_any_size")
@main_ways
def test_a_change_is_seen_by_views(way: str) -> None:
    hmp.convert()
    for name, use in VIEWED.items():
        assert_seen_in_all_modes(way, befores=(0, 3), use=use, in_part=name == "a part")


# ---- read by our kernels ---------------------------------------------------------------------------------------------

#: Products with the weight in both ways in which it may lie and by its transposed view, and as our kernels make them.
PRODUCTS: dict[str, tuple[Use, Use]] = {
    "linear": (F.linear, kernels_product),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w), lambda x, w, b: kernels_product(x, w.T, b, inner_first=True)),
    "@ of a view": (lambda x, w, b: x @ w.T, lambda x, w, b: kernels_product(x, w, None)),
}
if _core.kernels_path() == "scalar":  # then all is as torch makes it
    PRODUCTS = {name: (use, use) for name, (use, _) in PRODUCTS.items()}


@pytest.mark.usefixtures("counted", "parts_of_any_size")
@main_ways
def test_a_change_of_a_weight_that_our_kernels_read_is_seen(way: str) -> None:
    hmp.convert()
    for use, kernels in PRODUCTS.values():
        assert_seen_in_all_modes(way, befores=(0, 3), modes=("no_grad", "inference"), use=use, kernels=kernels)
    assert (products() > 0) == (_core.kernels_path() != "scalar")


# ---- wherever, whenever ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [one for one in MAIN if not one.startswith(("step", "by a thread"))])
def test_a_change_within_a_region_is_seen_outside(way: str) -> None:
    hmp.convert()
    regions: list[Callable[[], Any]] = [
        torch.no_grad,
        torch.inference_mode,
        hmp.disable_casts,
        lambda: torch.autocast("cpu", dtype=BF16),
        lambda: torch.autocast("cpu", enabled=False),
    ]
    for region, mode in itertools.product(regions, MODES):
        of = layer()
        change = WAYS[way](of)

        def inside(n: int, region: Any = region, change: Change = change) -> None:
            with region():
                change(n)

        for n in orders_of(way):
            assert_seen(of, inside, mode, n)


@main_ways
def test_a_change_is_seen_in_the_other_modes(way: str) -> None:
    hmp.convert()
    of = layer()
    change = WAYS[way](of)
    for n, (mode, then) in enumerate(itertools.permutations(MODES, 2)):
        used(of, then)
        assert_seen(of, change, mode, 1 if way in POINTERS else 1 + n % 2, then=then)
        as_by_hand(of, mode)


@main_ways
def test_a_change_is_seen_between_and_under_other_policies(way: str) -> None:
    of = layer()
    change = WAYS[way](of)
    for dtype in (BF16, FP16, BF16):
        hmp.convert(dtype=dtype)
        assert_seen(of, change, "grad", dtype=dtype)
        hmp.restore()
        change(2)
    hmp.convert(opt_level="O2")
    assert_seen_in_all_modes(way)
    with torch.autocast("cpu", dtype=BF16):
        assert_seen_in_all_modes(way)


@every_mode
def test_a_thread_sees_the_change_of_another(mode: str) -> None:
    hmp.convert()
    of = layer()
    seen: list[torch.Tensor] = []

    def run() -> None:
        torch.set_num_threads(1)
        seen.append(as_by_hand(of, mode))

    for n in (1, 2, 1):
        write(of.weight, n)
        as_by_hand(of, mode)
        in_threads(lambda _: run(), 1)
    assert len(seen) == 3
    assert not torch.equal(seen[0], seen[2])


@main_ways
def test_a_pending_backward_is_of_the_old_weight(way: str) -> None:
    """Or raises, but only where it does without casts."""

    def gradient(again: str) -> tuple[torch.Tensor, torch.Tensor] | None:
        of = layer()
        change = WAYS[way](of)
        for _ in range(3):
            used(of, "grad")
        x = X.clone().requires_grad_()
        result = of(x)
        old = of.weight.detach().clone()
        try:
            change(2)
            if again in MODES:
                with MODES[again]():
                    of(X)
            backward(result)
        except RuntimeError:
            return None
        return x.grad, old

    for again in ("not used again", *MODES):
        plain = gradient(again)
        hmp.convert()
        ours = gradient(again)
        hmp.restore()
        if ours is None:
            assert plain is None
        else:
            mine = X.clone().requires_grad_()
            backward(F.linear(mine.bfloat16(), ours[1].bfloat16()))
            assert_same(ours[0], mine.grad)
