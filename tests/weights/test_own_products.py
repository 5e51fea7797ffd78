"""Products by the package's kernels, which read the weight as it is stored: the bits of these kernels alone."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import _core, hmp
from helpers import processor
from helpers.products import (
    BIASES,
    IN_ROWS,
    INPUTS,
    PRODUCTS,
    Product,
    Weighted,
    assert_call_is_right,
    assert_same_bits,
)
from helpers.weights import cached, products

pytestmark = [
    pytest.mark.usefixtures("counted"),
    pytest.mark.skipif(_core.kernels_path() == "scalar", reason="these kernels need vectors"),
]

LINEAR = PRODUCTS["F.linear"]


@pytest.fixture(params=PRODUCTS)
def product(request: pytest.FixtureRequest) -> Product:
    return PRODUCTS[request.param]


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of torch's threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# ---- the same bits ---------------------------------------------------------------------------------------------------


def test_a_product_has_the_bits_of_the_kernels_from_the_first_call_on(product: Product) -> None:
    layer = Weighted(product)
    hmp.convert()
    with torch.no_grad():
        for name, make in INPUTS.items():
            x = make()
            if x.ndim != 2 and product.matrix_only:
                with pytest.raises(RuntimeError, match=r"matrix|matrices|2-D|dtype"):
                    layer(x)
                continue
            for _ in range(2):
                assert_call_is_right(layer, x, by_kernels=layer.is_computed_by_kernels(x) if name in IN_ROWS else None)


SHAPES = [(9, 7), (160, 145), (30, 94), (130, 768), (768, 512), (100, 1026), (64, 3000), (1, 2048), (1100, 2048)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("threads")
def test_a_weight_of_any_shape_is_multiplied_by_the_kernels(shape: tuple[int, int]) -> None:
    hmp.convert()
    names = ("F.linear", "torch.addmm", "@, of a view", "F.linear, of a view")
    for count, name in zip((1, 2, 1, 2), names, strict=True):
        torch.set_num_threads(count)
        layer = Weighted(PRODUCTS[name], shape)
        with torch.no_grad():
            for rows in (1, 2, 3, 7, 1, 17, 133):
                assert_call_is_right(layer, torch.randn(rows, shape[1]))
            for rows in (1, 4):
                assert_call_is_right(layer, torch.full((rows, shape[1]), 1e-39))


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_of_any_form_is_added_as_torch_adds_it(name: str) -> None:
    layer = Weighted(LINEAR, (160, 160))
    layer.bias = nn.Parameter(BIASES[name](), requires_grad=False)
    hmp.convert()
    with torch.no_grad():
        for _ in range(3):
            assert_call_is_right(layer, torch.randn(160, 160))


@pytest.mark.parametrize("name", ["torch.addmm", "torch.addmm, of a view"])
def test_an_addmm_with_more_than_a_product_is_made_as_it_is_written(name: str) -> None:
    layer, x = Weighted(PRODUCTS[name]), torch.randn(160, 144)

    def call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, **options: Any) -> torch.Tensor:
        return torch.addmm(bias, x, weight if layer.product.turned else weight.T, **options)

    lowered = layer.weight.detach().bfloat16()
    hmp.convert()
    with torch.no_grad():
        for bias in map(torch.randn, [(160,), (1, 160), (160, 1), (), (160, 160), (1,)]):
            for options in ({}, {"beta": 0.5}, {"alpha": 2.0}, {"beta": 0}, {"beta": 2, "alpha": -1}):
                with hmp.disable_casts():
                    expected = call(x.bfloat16(), lowered, bias.bfloat16(), **options)
                made = call(x, layer.weight, bias, **options)
                if _core.kernels_multiplies_bfloat16():
                    assert torch.equal(made, expected)
                torch.testing.assert_close(made, expected)
        for _ in range(3):
            with pytest.raises(TypeError):
                call(x, layer.weight, None)  # type: ignore[arg-type]  # what torch refuses


def test_a_square_weight_is_right_in_both_ways_and_times_itself() -> None:
    weight, x, bias = nn.Parameter(torch.randn(160, 160)), torch.randn(3, 160), torch.randn(160)
    lowered = weight.detach().bfloat16()
    calls: list[processor.Call] = [
        lambda x, w, _: x @ w,
        lambda x, w, _: x @ w.T,
        lambda x, w, _: F.linear(x, w),
        lambda x, w, _: F.linear(x, w.T),
        lambda _, w, b: w @ w,
        lambda _, w, b: w @ w.T,
        lambda _, w, b: F.linear(w, w),
        lambda _, w, b: torch.addmm(w[0], w, w),
        lambda _, w, b: F.linear(w.view(-1, 1).T, w.view(-1, 1).T),
    ]
    hmp.convert()
    with torch.no_grad():
        for call in calls * 2:
            with hmp.disable_casts():
                expected = call(x.bfloat16(), lowered, bias.bfloat16())
            made = call(x, weight, bias)
            torch.testing.assert_close(made, expected, rtol=0.016, atol=0.016 * expected.abs().max().item())
    assert cached().refreshes == 0


# ---- where they compute ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_they_serve_wherever_nothing_is_recorded(mode: Callable[[], Any]) -> None:
    layer, x = Weighted(LINEAR), torch.randn(3, 144)
    hmp.convert()
    layer(x)
    tracked = products()
    assert tracked == (not _core.kernels_multiplies_bfloat16())
    with mode():
        result = layer(x)
        assert products() - tracked == layer.is_computed_by_kernels(x)
        assert_same_bits(result, layer.by_kernels(x))
        assert not result.requires_grad
        assert result.is_inference() is (mode is torch.inference_mode)


def test_calls_with_and_without_gradients_and_of_any_rows_share_the_cast() -> None:
    layer, one, many = Weighted(PRODUCTS["F.linear, without bias"]), torch.randn(1, 144), torch.randn(600, 144)
    hmp.convert()
    for x in (one, many, one):
        with torch.no_grad():
            assert_call_is_right(layer, x, by_kernels=layer.is_computed_by_kernels(x))
        layer.zero_grad()
        layer(x).sum().backward()
        gradient = layer.weight.grad
        layer.zero_grad()
        with torch.no_grad():
            assert_call_is_right(layer, x, by_kernels=layer.is_computed_by_kernels(x))
        with hmp.disable_casts():
            F.linear(x.bfloat16(), layer.weight.bfloat16()).sum().backward()
        assert torch.equal(gradient, layer.weight.grad)
    assert (cached().weights, cached().refreshes) == (1, 0)


@pytest.mark.parametrize("inner", [144, 145])
def test_float16_is_multiplied_by_the_kernels_too(inner: int) -> None:
    layer, x = Weighted(LINEAR, (160, inner)), torch.randn(7, inner)
    hmp.convert(dtype=torch.float16)
    with torch.no_grad():
        result = layer(x)
        with hmp.disable_casts():
            given = [one.half().double() for one in (x, layer.weight, layer.bias)]
            expected = F.linear(*given)
    assert products() == 1
    assert result.dtype is torch.float16
    torch.testing.assert_close(result.double(), expected, rtol=2.0**-11, atol=2.0**-12)


def test_a_call_that_the_kernels_do_not_take_is_made_otherwise() -> None:
    layer = Weighted(LINEAR)
    hmp.convert()
    with torch.no_grad():
        vector = torch.randn(144)
        assert_call_is_right(layer, vector, by_kernels=layer.is_computed_by_kernels(vector))
        for x in (torch.randn([1] * 8 + [144]), torch.randn(0, 144)):
            for _ in range(2):
                assert_call_is_right(layer, x, by_kernels=False)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            layer(torch.randn(3, 143))
        with pytest.raises(TypeError):
            F.linear(torch.randn(3, 144), layer.weight, layer.bias, 1)  # type: ignore[call-arg]  # wrong on purpose


def test_a_result_is_a_tensor_like_any_of_torch() -> None:
    layer = Weighted(LINEAR)
    hmp.convert()
    with torch.no_grad():
        result = layer(torch.randn(3, 144))
        assert type(result) is torch.Tensor
        assert result.untyped_storage().resizable()
        assert result._version == 0
        result.resize_(10, 160)
    weight = nn.Parameter(layer(torch.randn(3, 144)).detach())
    assert weight.is_leaf


# ---- weights in bfloat16 ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def converted(opt_level: str) -> Iterator[None]:
    hmp.convert(opt_level=opt_level)
    yield
    hmp.restore()


LOWERED: dict[str, Callable[[], Any]] = {
    "O1": lambda: converted("O1"),
    "O2": lambda: converted("O2"),
    "a region": lambda: hmp.autocast("cpu", dtype=torch.bfloat16),
}


def test_a_weight_in_bfloat16_is_read_as_it_is(product: Product) -> None:
    layer = Weighted(product).bfloat16()
    inputs = [torch.randn(rows, 144).bfloat16() for rows in (1, 3, 40)]
    with torch.no_grad():
        expected = [layer(x) for x in inputs]  # by torch alone
        for lowered, mode in itertools.product(LOWERED.values(), (torch.no_grad, torch.inference_mode)):
            with lowered(), mode():
                for x, by_torch in zip(inputs, expected, strict=True):
                    for given in (x, x.float()):
                        torch.testing.assert_close(layer(given), by_torch)
                        assert_call_is_right(layer, given, by_kernels=layer.is_computed_by_kernels(given))
                assert cached().weights == 0


def test_a_weight_in_bfloat16_is_left_to_torch_where_nothing_is_cast_or_gradients_are_recorded() -> None:
    layer, x = Weighted(LINEAR).bfloat16(), torch.randn(3, 144).bfloat16()
    hmp.convert()
    layer(x)
    layer(x).sum().backward()
    tracked = products()
    assert (tracked > 0) == (not _core.kernels_multiplies_bfloat16())
    with torch.no_grad(), hmp.disable_casts():
        layer(x)
    hmp.restore()
    with torch.no_grad():
        layer(x)
    assert products() == tracked


def test_a_product_of_two_activations_is_one_too() -> None:
    one, other = torch.randn(3, 144), torch.randn(144, 160)
    hmp.convert()
    with torch.no_grad():
        for left, right in ((one, other), (one.bfloat16(), other.bfloat16())):
            with hmp.disable_casts():
                expected = processor.kernels_product(left.bfloat16(), right.bfloat16().t(), None, inner_first=True)
            assert torch.equal(left @ right, expected)
    assert products() == 2


def test_the_report_tells_of_products() -> None:
    layer, x = Weighted(LINEAR), torch.randn(3, 144)
    hmp.convert()
    with torch.no_grad():
        layer(x)
        layer(x)
    line = "products with weights by habana_mp's kernels: 2"
    assert (line in str(cached()).splitlines()) == layer.is_computed_by_kernels(x)
    hmp.reset_report()
    assert "products" not in str(cached())
