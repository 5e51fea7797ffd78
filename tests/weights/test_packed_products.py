"""Other products from packed weights, and weights that change while they are packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers import processor
from helpers.accelerators import needs_accelerator
from helpers.packed import (
    INPUTS,
    PRODUCTS,
    Product,
    Weighted,
    assert_a_recorded_call_brings_the_plain_cast_back,
    assert_same_bits,
    called_often,
    changes_over,
    is_packed_for,
)
from helpers.processor import Call
from helpers.weights import packed

SHAPES = [(30, 94), (768, 512), (100, 1026), (1, 2048)]

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("counted", "measured_again"), needs_accelerator("packed")]


@pytest.fixture(params=PRODUCTS)
def product(request: pytest.FixtureRequest, panels: None) -> Product:
    """Of those that run from panels."""
    return PRODUCTS[request.param]


def packed_product(product: Product) -> Weighted:
    return called_often(Weighted(product))


#: Of the inputs, those whose rows lie so that a packed weight serves where the bits are the same.
IN_ROWS = {"one row", "rows", "many rows", "a batch", "four dimensions", "bfloat16", "rows of something wider"}


def test_a_product_gives_the_same_bits(product: Product) -> None:
    for name, make in INPUTS.items():
        layer = packed_product(product)
        with torch.no_grad():
            for _ in range(2):
                x = make()
                if x.ndim != 2 and product.matrix_only:
                    with pytest.raises(RuntimeError, match=r"matrix|matrices|2-D|dtype"):
                        layer(x)
                    continue
                assert_same_bits(layer(x), layer.by_hand(x))
                if name in IN_ROWS:
                    assert packed() == is_packed_for(layer, x), name
        del layer  # before the next one is packed


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_product_is_packed_anew_where_its_weight_changed(product: Product, mode: Callable[[], Any]) -> None:
    layer, x = packed_product(product), torch.randn(3, 144)
    for change in (
        lambda: layer.weight.data.mul_(2),
        lambda: layer.weight.detach().add_(1),
        lambda: setattr(layer.weight, "data", torch.randn_like(layer.weight)),
        lambda: layer.load_state_dict(Weighted(product).state_dict()),
        lambda: layer.weight.untyped_storage().fill_(0x3F),
        lambda: torch.optim.SGD([layer.weight], lr=0.5).step(),
        lambda: layer.weight.detach().numpy().fill(0.25),
    ):
        with mode():
            before = layer(x)
            for _ in range(8):
                assert torch.equal(layer(x), before)
        layer.weight.grad = torch.ones_like(layer.weight)
        change()
        with mode():
            assert not torch.equal(layer(x), before)
            for _ in range(8):
                assert torch.equal(layer(x), layer.by_hand(x))


def test_a_recorded_product_brings_the_plain_cast_back(product: Product) -> None:
    assert_a_recorded_call_brings_the_plain_cast_back(packed_product(product), product.call)


@pytest.mark.usefixtures("panels")
@pytest.mark.parametrize("name", ["torch.addmm", "torch.addmm, of a view"])
def test_an_addmm_with_more_than_a_product_is_made_as_it_is_written(name: str) -> None:
    product = PRODUCTS[name]
    layer, x = packed_product(product), torch.randn(160, 144)

    def call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, **options: Any) -> torch.Tensor:
        return torch.addmm(bias, x, weight if product.turned else weight.T, **options)

    shapes = [(160,), (1, 160), (160, 1), (), (160, 160), (1,)]
    lowered = layer.weight.detach().clone().bfloat16()
    with torch.no_grad():
        for bias in map(torch.randn, shapes):
            for options in ({}, {"beta": 0.5}, {"alpha": 2.0}, {"beta": 0}, {"beta": 2, "alpha": -1}):
                expected = call(x.bfloat16(), lowered, bias.bfloat16(), **options)
                assert torch.equal(call(x, layer.weight, bias, **options), expected)
        for _ in range(12):
            with pytest.raises(TypeError):
                call(x, layer.weight, None)  # type: ignore[arg-type]  # what torch refuses


@pytest.mark.usefixtures("panels")
def test_one_weight_in_both_ways_is_right_in_both() -> None:
    """A square one: of its panels for one way the other would make the transposed product."""
    torch.manual_seed(0)
    hmp.convert()
    weight = nn.Parameter(torch.randn(160, 160))
    ways = [
        Product(lambda x, w, _: x @ w),
        Product(lambda x, w, _: x @ w.T, turned=False),
        Product(lambda x, w, _: F.linear(x, w), turned=False),
        Product(lambda x, w, _: F.linear(x, w.T)),
        Product(lambda x, w, _: torch.mm(x, w)),
    ]
    bias = torch.randn(160)
    with torch.no_grad():
        lowered = weight.detach().clone().bfloat16()

        def calls() -> Iterator[None]:
            for number in range(400):
                x = torch.randn(3, 160)
                way = ways[number // 20 % len(ways)].call
                assert torch.equal(way(x, weight, bias), way(x.bfloat16(), lowered, bias))
                yield

        packing = [
            processor.packs(way.call, torch.randn(3, 160), (160, 160), turned=way.turned, bias=False) for way in ways
        ]
        changes = changes_over(calls())
        assert changes <= 60
        assert changes >= 10 or not all(packing)
        assert changes == 0 or any(packing)
        assert torch.equal(weight @ weight, lowered @ lowered)
        assert torch.equal(weight @ weight.T, lowered @ lowered.T)


BY_THEMSELVES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda w: w @ w,
    lambda w: F.linear(w, w),
    lambda w: torch.addmm(w[0], w, w),
    lambda w: F.linear(w.view(-1, 1).T, w.view(-1, 1).T),
]


@pytest.mark.usefixtures("panels")
def test_a_weight_s_product_with_itself_does_not_pack_it_for_ever() -> None:
    hmp.convert()
    for by_itself in BY_THEMSELVES:
        weight = nn.Parameter(torch.randn(160, 160))
        with torch.no_grad():
            for _ in range(12):
                by_itself(weight)
        assert packed() == 0
    assert hmp.report(show=False).weights.refreshes == 0


@pytest.mark.usefixtures("panels")
def test_a_weight_beside_a_view_that_lives_on_is_not_packed_for_ever() -> None:
    hmp.convert()
    weight, x = nn.Parameter(torch.randn(160, 160)), torch.randn(3, 160)

    def calls() -> Iterator[torch.Tensor]:
        for _ in range(200):
            view = weight.T
            for _ in range(6):
                yield x @ view
            yield F.linear(x, weight)

    ways: list[Call] = [lambda x, w, _: x @ w.T, lambda x, w, _: F.linear(x, w)]
    packing = [processor.packs(way, x, (160, 160), turned=False, bias=False) for way in ways]
    with torch.no_grad():
        changes = changes_over(calls())
    assert changes <= 30
    assert changes >= 1 or not all(packing)
    assert changes == 0 or any(packing)


def test_two_views_of_a_weight_are_not_answered_from_its_panels(product: Product) -> None:
    """Who knows what the other one is for."""
    layer, x = packed_product(product), torch.randn(3, 144)
    with torch.no_grad():
        hits = hmp.report(show=False).weights.hits
        layer(x)
        assert hmp.report(show=False).weights.hits > hits
        other = layer.weight.detach()
        lowered = layer.by_hand(x)
        other.data.fill_(0.5)
        assert not torch.equal(layer.by_hand(x), lowered)
        for _ in range(8):
            assert torch.equal(layer(x), layer.by_hand(x))
        del other
        for _ in range(80):
            assert torch.equal(layer(x), layer.by_hand(x))
        assert packed() == is_packed_for(layer, x)


@pytest.mark.parametrize("shape", SHAPES)
def test_whatever_a_measurement_decides_a_product_has_the_same_bits(shape: tuple[int, int]) -> None:
    before = torch.get_num_threads()
    hmp.convert()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for name in ("torch.addmm", "@, of a view", "F.linear, of a view"):
                layer = Weighted(PRODUCTS[name], shape)
                with torch.no_grad():
                    for rows in (1, 1, 1, 1, 1, 1, 2, 3, 1, 7, 64, 1, 133):
                        for x in (torch.randn(rows, shape[1]), torch.full((rows, shape[1]), 1e-39)):
                            assert torch.equal(layer(x), layer.by_hand(x)), (name, threads, rows)
    finally:
        torch.set_num_threads(before)
