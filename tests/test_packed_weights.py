"""Linear layers, other products and convolutions from packed weights: the same bits as without, where they may be."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import processor
import pytest
import torch
import torch.nn.functional as F
from conftest import all_bfloat16_tensors, packed
from processor import Call
from torch import nn

from habana_mp import _core, hmp

Layer = TypeVar("Layer", "nn.Linear", "Weighted")

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("counted", "measured_again")]


@pytest.fixture
def measured_again() -> Iterator[None]:
    yield
    processor.measure_packing()


def assume(form: processor.Form, monkeypatch: pytest.MonkeyPatch) -> None:
    processor.assume_packing(form)
    if form == "panels in any order":
        draw_short_numbers(monkeypatch)


@pytest.fixture(params=get_args(processor.Form))
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What weights are packed for, whatever a measurement would say."""
    assume(request.param, monkeypatch)


@pytest.fixture(params=["panels", "panels in any order"])
def panels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own kernels only."""
    assume(request.param, monkeypatch)


@pytest.fixture
def library() -> None:
    processor.assume_packing("library")


def draw_short_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers are of few bits from here on: float32 sums their products without rounding, in whatever order."""

    def draw(*sizes: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        shape = sizes[0] if sizes and not isinstance(sizes[0], int) else sizes
        with hmp.disable_casts():
            return (torch.randint(-8, 9, tuple(shape)) / 8).to(dtype)

    def reset(layer: nn.Linear) -> None:
        with torch.no_grad():
            for one in layer.parameters():
                one.copy_(draw(one.shape))

    monkeypatch.setattr(torch, "randn", draw)
    monkeypatch.setattr(nn.Linear, "reset_parameters", reset)


def is_packed_for(layer: nn.Linear | Weighted, x: torch.Tensor) -> bool:
    """Must the layer be packed here after a call, of some, with these rows?"""
    has_bias = layer.bias is not None
    product = Product(F.linear, turned=False, bias=has_bias) if isinstance(layer, nn.Linear) else layer.product
    outer, inner = layer.weight.shape[::-1] if product.turned else layer.weight.shape
    return processor.packs(product.call, x, (outer, inner), turned=product.turned, bias=product.bias)


def changes_over(calls: Iterable[object]) -> int:
    """How often a weight was packed or unpacked while these calls were made, one by one."""
    counts = [packed(), *(packed() for _ in calls)]
    return sum(one != other for one, other in itertools.pairwise(counts))


def called_often(layer: Layer, width: int = 144) -> Layer:
    """Until it is packed, if this processor packs it."""
    hmp.convert()
    with torch.no_grad():
        for _ in range(8):
            layer(torch.randn(2, width))
    assert packed() == is_packed_for(layer, torch.randn(2, width))
    return layer


def assert_same_bits(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert result.dtype is torch.bfloat16
    assert result.stride() == expected.stride()
    assert torch.equal(result.nan_to_num(), expected.nan_to_num())
    assert torch.equal(result.isnan(), expected.isnan())


def by_hand(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """As a layer in bfloat16 does it: of a weight that wants no gradient torch makes some products another way."""
    bias = None if layer.bias is None else layer.bias.detach().bfloat16()
    return F.linear(x.bfloat16(), layer.weight.detach().clone().bfloat16().requires_grad_(), bias)


def packed_layer(bias: bool = True, shape: tuple[int, int] = (160, 144)) -> nn.Linear:
    torch.manual_seed(0)
    return called_often(nn.Linear(shape[1], shape[0], bias=bias), shape[1])


def assert_calls_are_right(layer: nn.Linear, x: torch.Tensor) -> None:
    """Often enough to be packed."""
    with torch.no_grad():
        for _ in range(8):
            assert torch.equal(layer(x), by_hand(layer, x))


INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "one row": lambda: torch.randn(1, 144),
    "rows": lambda: torch.randn(7, 144),
    "many rows": lambda: torch.randn(300, 144),
    "a batch": lambda: torch.randn(3, 5, 144),
    "four dimensions": lambda: torch.randn(2, 3, 5, 144),
    "one dimension": lambda: torch.randn(144),
    "no rows": lambda: torch.randn(0, 144),
    "bfloat16": lambda: torch.randn(7, 144, dtype=torch.bfloat16),
    "transposed": lambda: torch.randn(144, 7).t(),
    "every other row": lambda: torch.randn(14, 144)[::2],
    "every other column": lambda: torch.randn(7, 288)[:, ::2],
    "expanded": lambda: torch.randn(1, 144).expand(6, 144),
    "not finite": lambda: torch.full((2, 144), float("inf")),
    "sequence first": lambda: torch.randn(4, 2, 144).transpose(0, 1),
    "rows of something wider": lambda: torch.randn(7, 200)[:, :144],
    "rows of something wider, in a batch": lambda: torch.randn(3, 7, 200)[:, :, :144],
    "the last position": lambda: torch.randn(3, 7, 144)[:, -1:],
    "the last position of one": lambda: torch.randn(1, 7, 144)[:, -1:],
    "negated bfloat16": lambda: torch._neg_view(torch.randn(7, 144, dtype=torch.bfloat16)),
    "bfloat16 rows of something wider": lambda: torch.randn(7, 200, dtype=torch.bfloat16)[:, 5:149],
    "bfloat16 transposed": lambda: torch.randn(144, 7, dtype=torch.bfloat16).t(),
    "bfloat16 expanded": lambda: torch.randn(1, 144, dtype=torch.bfloat16).expand(6, 144),
    "bfloat16 sequence first": lambda: torch.randn(4, 2, 144, dtype=torch.bfloat16).transpose(0, 1),
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.usefixtures("form")
def test_the_results_are_the_same_bits(name: str, bias: bool) -> None:
    layer = packed_layer(bias)
    with torch.no_grad():
        for _ in range(2):
            x = INPUTS[name]()
            assert_same_bits(layer(x), by_hand(layer, x))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.usefixtures("form")
def test_it_serves_wherever_nothing_is_recorded(mode: Callable[[], Any]) -> None:
    layer = packed_layer()
    x = torch.randn(3, 144)
    with mode():
        result = layer(x)
        assert torch.equal(result, by_hand(layer, x))
        assert not result.requires_grad
        assert result.is_inference() is (mode is torch.inference_mode)
        assert packed() == is_packed_for(layer, x)


def assert_a_recorded_call_brings_the_plain_cast_back(layer: nn.Linear | Weighted, call: Call) -> None:
    x = torch.randn(3, 144)
    layer(x).sum().backward()
    assert packed() == 0
    gradient, layer.weight.grad = layer.weight.grad, None
    hmp.restore()
    call(x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16()).sum().backward()
    assert torch.equal(gradient, layer.weight.grad)


@pytest.mark.usefixtures("form")
def test_a_recorded_call_brings_the_plain_cast_back() -> None:
    assert_a_recorded_call_brings_the_plain_cast_back(packed_layer(), F.linear)


@pytest.mark.usefixtures("form")
def test_the_packed_weight_replaces_the_plain_cast() -> None:
    layer = packed_layer(bias=False)
    assert hmp.report(show=False).weights.weights == 1
    assert hmp.report(show=False).weights.bytes == 2 * layer.weight.numel()


WRITES: dict[str, Callable[[nn.Linear], object]] = {
    "add_": lambda layer: layer.weight.add_(1),
    "data": lambda layer: layer.weight.data.mul_(2),
    "set data": lambda layer: setattr(layer.weight, "data", torch.randn(160, 144)),
    "detach": lambda layer: layer.weight.detach().zero_(),
    "load_state_dict": lambda layer: layer.load_state_dict(nn.Linear(144, 160).state_dict()),
    "numpy": lambda layer: layer.weight.detach().numpy().fill(0.25),
    "pointer": lambda layer: torch.frombuffer(
        (__import__("ctypes").c_float * layer.weight.numel()).from_address(layer.weight.data_ptr()), dtype=torch.float32
    ).fill_(0.5),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.usefixtures("form")
def test_a_changed_weight_is_packed_anew(name: str) -> None:
    layer = packed_layer()
    x = torch.randn(3, 144)
    with torch.no_grad():
        before = layer(x)
        WRITES[name](layer)
        for _ in range(8):
            assert torch.equal(layer(x), by_hand(layer, x))
        assert not torch.equal(layer(x), before)


@pytest.mark.usefixtures("form")
def test_a_step_of_the_optimizer_is_seen() -> None:
    layer = packed_layer()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer.weight.grad = torch.ones_like(layer.weight)
    optimizer.step()
    x = torch.randn(3, 144)
    with torch.no_grad():
        assert torch.equal(layer(x), by_hand(layer, x))


@pytest.mark.usefixtures("form")
def test_a_wrong_call_raises_what_torch_raises() -> None:
    layer = packed_layer()
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            layer(torch.randn(3, 143))
        with pytest.raises(TypeError):
            F.linear(torch.randn(3, 144), layer.weight, layer.bias, 1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("form", "shape"), [("library", (100, 100)), ("panels", (16, 16)), ("panels", (145, 160))])
def test_a_small_or_odd_weight_is_not_packed(form: processor.Form, shape: tuple[int, int]) -> None:
    _core.weights_assume_packing(form)
    hmp.convert()
    layer = nn.Linear(*shape)
    with torch.no_grad():
        for _ in range(8):
            layer(torch.randn(2, shape[0]))
    assert packed() == 0


def test_what_does_not_pay_is_not_packed() -> None:
    _core.weights_assume_packing("nothing")
    hmp.convert()
    layer = nn.Linear(144, 160)
    x = torch.randn(2, 144)
    assert_calls_are_right(layer, x)
    assert packed() == 0


SHAPES = [(64, 64), (30, 94), (130, 768), (768, 512), (100, 1026), (64, 3000), (1, 2048), (2100, 2048)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_whatever_a_measurement_decides_the_bits_are_the_same(shape: tuple[int, int], bias: bool, threads: int) -> None:
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    hmp.convert()
    try:
        layer = nn.Linear(shape[1], shape[0], bias=bias)
        with torch.no_grad():
            for rows in (1, 1, 1, 1, 1, 1, 2, 3, 1, 7, 64, 1, 133):
                for x in (
                    torch.randn(rows, shape[1]),
                    torch.randn(2, rows, shape[1]),
                    torch.full((rows, shape[1]), 1e-39),
                ):
                    assert torch.equal(layer(x), by_hand(layer, x))
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("panels")
def test_a_call_that_the_panels_cannot_answer_is_answered_otherwise() -> None:
    layer = packed_layer()
    with torch.no_grad():
        for x in (torch.randn(144), torch.randn([1] * 8 + [144]), torch.randn(0, 144), torch.randn(3, 144)):
            for _ in range(6):
                assert torch.equal(layer(x), by_hand(layer, x))
    assert packed() == is_packed_for(layer, x)


@pytest.mark.usefixtures("panels")
def test_a_result_is_a_tensor_like_any_of_torch() -> None:
    layer = packed_layer()
    with torch.no_grad():
        result = layer(torch.randn(3, 144))
        assert type(result) is torch.Tensor
        assert result.untyped_storage().resizable()
        assert result._version == 0
        result.resize_(10, 160)
    weight = nn.Parameter(layer(torch.randn(3, 144)).detach())
    assert weight.is_leaf


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("inner", [1100, 2048])
def test_a_transposed_input_gives_the_bits_that_torch_gives_for_it(inner: int) -> None:
    torch.manual_seed(0)
    hmp.convert()
    layer = nn.Linear(inner, 48)
    with torch.no_grad():
        for _ in range(8):
            for x in (torch.randn(6, inner), torch.randn(inner, 6).t(), torch.randn(2, inner, 3).transpose(1, 2)):
                assert torch.equal(layer(x), by_hand(layer, x))


BIASES: dict[str, Callable[[], torch.Tensor]] = {
    "a column": lambda: torch.randn(160, 1),
    "a matrix": lambda: torch.randn(160, 160),
    "one for all": lambda: torch.randn(1),
    "bfloat16 apart": lambda: torch.randn(320).bfloat16()[::2],
    "negated bfloat16": lambda: torch._neg_view(torch.randn(160).bfloat16()),
}


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("name", BIASES)
def test_a_bias_of_any_form_is_added_as_torch_adds_it(name: str) -> None:
    layer = packed_layer(shape=(160, 160))
    bias = BIASES[name]()
    x = torch.randn(160, 160)
    with torch.no_grad():
        for _ in range(8):
            expected = F.linear(x.bfloat16(), layer.weight.detach().clone().bfloat16(), bias.bfloat16())
            assert torch.equal(F.linear(x, layer.weight, bias), expected)


def sums_of_rounding(rows: int, inner: int) -> torch.Tensor:
    """A large value at the end takes what the sums before it have in their last bits."""
    x = torch.randn(rows, inner)
    half = inner // 2 - 1
    x[:, half : 2 * half] = -x[:, :half]
    x[:, 2 * half : -2] = 0
    x[:, -2], x[:, -1] = 2.0**18, -(2.0**18)
    return x


@pytest.mark.parametrize("form", ["library", "panels"])
@pytest.mark.parametrize("shape", [(64, 514), (64, 515), (100, 1026), (64, 1028), (64, 2050)])
def test_sums_in_which_rounding_is_all_are_the_same_bits(shape: tuple[int, int], form: processor.Form) -> None:
    processor.assume_packing(form)
    torch.manual_seed(0)
    hmp.convert()
    layer = nn.Linear(shape[1], shape[0], bias=False)
    half = shape[1] // 2 - 1
    with torch.no_grad():
        layer.weight[:, half : 2 * half] = layer.weight[:, :half]
        layer.weight[:, -1] = layer.weight[:, -2]
        for rows in (1, 1, 1, 1, 1, 1, 2, 3, 4, 1, 20):
            x = sums_of_rounding(rows, shape[1])
            assert torch.equal(layer(x), by_hand(layer, x))


def test_what_was_found_out_for_some_rows_is_not_taken_for_others() -> None:
    torch.manual_seed(0)
    hmp.convert()
    layer = nn.Linear(64, 32)
    with torch.no_grad():
        for rows in (3, 3, 3, 3, 3, 3, 3, 2, 1, 2, 4):
            for x in (torch.randn(rows, 64), torch.full((rows, 64), 1e-39)):
                assert torch.equal(layer(x), by_hand(layer, x))


@pytest.mark.usefixtures("form")
def test_torch_s_library_is_not_used_where_the_user_has_switched_it_off() -> None:
    layer = packed_layer(bias=False)
    x = torch.full((3, 144), 1e-39)
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(layer(x), by_hand(layer, x))
        assert layer(x).any()


@pytest.mark.usefixtures("form")
@pytest.mark.filterwarnings("ignore:torch.autocast is enabled")
def test_torch_s_autocast_has_the_last_word() -> None:
    layer = packed_layer()
    x = torch.randn(3, 144)
    with torch.no_grad():
        with torch.autocast("cpu", torch.float16):
            assert [layer(x).dtype for _ in range(8)] == [torch.float16] * 8
        for _ in range(8):
            assert torch.equal(layer(x), by_hand(layer, x))
    assert packed() == is_packed_for(layer, x)


@pytest.mark.usefixtures("form")
def test_calls_that_take_turns_do_not_pack_a_weight_for_ever() -> None:
    layer = packed_layer()
    with torch.no_grad():
        calls = (layer(torch.randn(3, 144) if number % 20 else torch.randn(144)) for number in range(800))
        assert changes_over(calls) <= 30


@pytest.mark.usefixtures("form")
def test_switched_off_nothing_is_packed() -> None:
    hmp.convert(packed_weights=False)
    layer = nn.Linear(144, 160)
    with torch.no_grad():
        for _ in range(8):
            layer(torch.randn(2, 144))
    assert packed() == 0


@pytest.mark.usefixtures("form")
def test_float16_is_not_packed() -> None:
    hmp.convert(dtype=torch.float16)
    layer = nn.Linear(144, 160)
    with torch.no_grad():
        for _ in range(8):
            assert layer(torch.randn(2, 144)).dtype is torch.float16
    assert packed() == 0


@pytest.mark.usefixtures("form")
def test_a_packed_model_can_be_saved_copied_and_traced(tmp_path: Any) -> None:
    layer = packed_layer()
    x = torch.randn(3, 144)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    copy = nn.Linear(144, 160)
    copy.load_state_dict(torch.load(tmp_path / "layer.pt"))
    with torch.no_grad():
        assert torch.equal(copy(x), layer(x))
        traced = torch.jit.trace(layer, x)
        assert torch.equal(traced(x), by_hand(layer, x))


@dataclass
class Product:
    """A product as somebody writes it, of rows of 144 values."""

    call: Call
    turned: bool = True  # a weight of 144 x 160
    matrix_only: bool = False
    bias: bool = False  # is it added?


PRODUCTS = {
    "torch.addmm": Product(lambda x, w, b: torch.addmm(b, x, w), matrix_only=True, bias=True),
    "addmm as a method": Product(lambda x, w, b: b.addmm(x, w), matrix_only=True, bias=True),
    "torch.addmm, of a view": Product(
        lambda x, w, b: torch.addmm(b, x, w.T), turned=False, matrix_only=True, bias=True
    ),
    "torch.mm": Product(lambda x, w, b: torch.mm(x, w), matrix_only=True),
    "mm as a method, of a view": Product(lambda x, w, b: x.mm(w.T), turned=False, matrix_only=True),
    "torch.matmul": Product(lambda x, w, b: torch.matmul(x, w)),
    "torch.linalg.matmul": Product(lambda x, w, b: torch.linalg.matmul(x, w)),
    "matmul as a method, of a view": Product(lambda x, w, b: x.matmul(w.transpose(0, 1)), turned=False),
    "@": Product(lambda x, w, b: x @ w),
    "@, of a view": Product(lambda x, w, b: x @ w.mT, turned=False),
    "F.linear, of a view": Product(lambda x, w, b: F.linear(x, w.T, b), bias=True),
}


class Weighted(nn.Module):
    """A product with a weight and a bias of its own."""

    def __init__(self, product: Product, shape: tuple[int, int] = (160, 144)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.product = product
        self.weight = nn.Parameter(torch.randn(shape[::-1] if product.turned else shape))
        self.bias = nn.Parameter(torch.randn(shape[0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product.call(x, self.weight, self.bias)

    def by_hand(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.detach().clone().bfloat16().requires_grad_()
        return self.product.call(x.bfloat16(), weight, self.bias.detach().bfloat16())


@pytest.fixture(params=PRODUCTS)
def product(request: pytest.FixtureRequest, panels: None) -> Product:
    """Of those that run from panels."""
    return PRODUCTS[request.param]


def packed_product(product: Product) -> Weighted:
    return called_often(Weighted(product))


#: Of the inputs, those whose rows lie so that a packed weight serves where the bits are the same.
IN_ROWS = {"one row", "rows", "many rows", "a batch", "four dimensions", "bfloat16", "rows of something wider"}


@pytest.mark.parametrize("name", INPUTS)
def test_a_product_gives_the_same_bits(product: Product, name: str) -> None:
    layer = packed_product(product)
    with torch.no_grad():
        for _ in range(2):
            x = INPUTS[name]()
            if x.ndim != 2 and product.matrix_only:
                with pytest.raises(RuntimeError, match=r"matrix|matrices|2-D|dtype"):
                    layer(x)
                continue
            assert_same_bits(layer(x), layer.by_hand(x))
            if name in IN_ROWS:
                assert packed() == is_packed_for(layer, x)


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
def test_what_torch_refuses_is_refused_of_a_packed_weight_too() -> None:
    for name in ("@", "@, of a view", "F.linear, of a view"):
        layer = packed_product(PRODUCTS[name])
        with torch.no_grad():
            for sides in ((8, 144), (8, 160)):
                with pytest.raises(RuntimeError, match="dimension"):
                    F.conv2d(torch.randn(1, 3, *sides), layer.weight, None, (1, 1), (0, 0), (1, 1), 1)


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


def by_itself(view: torch.Tensor) -> torch.Tensor:
    return F.linear(view, view)


BY_THEMSELVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "@": lambda w: w @ w,
    "F.linear": lambda w: F.linear(w, w),
    "addmm": lambda w: torch.addmm(w[0], w, w),
    "a row": lambda w: by_itself(w.view(-1, 1).T),
}


@pytest.mark.usefixtures("panels")
@pytest.mark.parametrize("name", BY_THEMSELVES)
def test_a_weight_s_product_with_itself_does_not_pack_it_for_ever(name: str) -> None:
    hmp.convert()
    weight = nn.Parameter(torch.randn(160, 160))
    with torch.no_grad():
        for _ in range(12):
            BY_THEMSELVES[name](weight)
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
    assert changes >= 2 or not all(packing)
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
@pytest.mark.parametrize("name", ["torch.addmm", "torch.mm", "@", "@, of a view", "F.linear, of a view"])
@pytest.mark.parametrize("threads", [1, 2])
def test_whatever_a_measurement_decides_a_product_has_the_same_bits(
    shape: tuple[int, int], name: str, threads: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    hmp.convert()
    try:
        layer = Weighted(PRODUCTS[name], shape)
        with torch.no_grad():
            for rows in (1, 1, 1, 1, 1, 1, 2, 3, 1, 7, 64, 1, 133):
                for x in (torch.randn(rows, shape[1]), torch.full((rows, shape[1]), 1e-39)):
                    assert torch.equal(layer(x), layer.by_hand(x))
    finally:
        torch.set_num_threads(before)


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strided": {"stride": 2},
    "padded": {"padding": (1, 2)},
    "dilated": {"dilation": 2},
    "in groups": {"groups": 4},
    "of points": {"kernel_size": 1},
    "without bias": {"bias": False},
}


def convolution(**options: Any) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(128, 160, **{"kernel_size": 3, **options})


def convolved_by_hand(layer: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    bias = None if layer.bias is None else layer.bias.detach().bfloat16()
    options = (layer.stride, layer.padding, layer.dilation, layer.groups)
    return F.conv2d(x.bfloat16(), layer.weight.detach().clone().bfloat16(), bias, *options)


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("weight_order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.usefixtures("library")
def test_a_convolution_in_channels_last_order_gives_the_same_bits(name: str, weight_order: torch.memory_format) -> None:
    layer = convolution(**CONVOLUTIONS[name])
    layer.to(memory_format=weight_order)
    hmp.convert()
    with torch.no_grad():
        for size in (9, 9, 9, 9, 9, 9, 9, 12, 30):
            x = torch.randn(2, 128, size, size + 1).to(memory_format=torch.channels_last)
            result, expected = layer(x), convolved_by_hand(layer, x)
            assert torch.equal(result, expected)
            assert result.stride() == expected.stride()
        assert packed() == processor.library_packs_convolutions()
        layer.weight.add_(1)
        assert torch.equal(layer(x), convolved_by_hand(layer, x))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", ["bfloat16 apart", "negated bfloat16"])
def test_a_convolution_s_bias_of_any_form_is_added_as_torch_adds_it(name: str) -> None:
    hmp.convert()
    layer, bias = convolution(), BIASES[name]()
    with torch.no_grad():
        for _ in range(8):
            x = torch.randn(2, 128, 9, 9).to(memory_format=torch.channels_last)
            expected = F.conv2d(x.bfloat16(), layer.weight.detach().clone().bfloat16(), bias, (1, 1), (0, 0), (1, 1), 1)
            assert torch.equal(F.conv2d(x, layer.weight, bias, (1, 1), (0, 0), (1, 1), 1), expected)
            x = torch._neg_view(x.bfloat16())
            assert torch.equal(layer(x), convolved_by_hand(layer, x))


def assert_convolutions_are_right(layer: nn.Conv2d, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        for x in inputs:
            result, expected = layer(x), convolved_by_hand(layer, x)
            assert torch.equal(result, expected)
            assert result.stride() == expected.stride()


#: Of points: each result is the sum of a few products only, which all orders take one after the other.
POINTS = {"kernel_size": 1, "bias": False}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.usefixtures("library")
def test_a_convolution_in_channels_first_order_gives_the_same_bits(name: str, mode: Callable[[], Any]) -> None:
    layer = convolution(**CONVOLUTIONS[name])
    hmp.convert()
    with mode():
        for size in (28, 28, 28, 28, 28, 28, 28, 12, 28):
            x = torch.randn(2, 128, size, size + 1)
            result, expected = layer(x), convolved_by_hand(layer, x)
            assert torch.equal(result, expected)
            assert result.stride() == expected.stride()
            assert result.is_inference() is (mode is torch.inference_mode)


@pytest.mark.usefixtures("library")
def test_a_convolution_in_channels_first_order_is_packed_where_the_bits_are_the_same() -> None:
    layer = convolution(**POINTS)
    hmp.convert()
    x = torch.randn(2, 128, 28, 28)
    is_alike = processor.library_sums_as_convolution(layer, x)
    assert_convolutions_are_right(layer, *[x] * 8)
    assert packed() == is_alike
    not_finite = x.clone()
    not_finite[:, 0] = float("inf")
    assert_convolutions_are_right(layer, x.bfloat16(), -x, torch.zeros_like(x), not_finite, x.half())
    assert packed() == is_alike
    with torch.no_grad():
        layer.weight.mul_(2)
    assert_convolutions_are_right(layer, *[x] * 8)
    assert packed() == is_alike


@pytest.mark.usefixtures("library")
def test_a_packed_convolution_serves_the_sizes_and_threads_for_which_its_bits_were_compared() -> None:
    layer = convolution(**POINTS)
    hmp.convert()
    x, larger = torch.randn(2, 128, 28, 28), torch.randn(2, 128, 28, 30)
    is_alike = processor.library_sums_as_convolution(layer, x)
    assert_convolutions_are_right(layer, *[x] * 8)
    assert packed() == is_alike
    assert_convolutions_are_right(layer, larger)
    assert packed() == 0
    assert_convolutions_are_right(layer, *[x] * 8)
    assert packed() == is_alike
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert_convolutions_are_right(layer, x)
        assert packed() == 0
    finally:
        torch.set_num_threads(threads)


@pytest.mark.usefixtures("library")
def test_images_of_ever_new_sizes_are_not_compared_for_ever() -> None:
    layer = convolution(**POINTS)
    hmp.convert()
    for size in range(28, 36):
        x = torch.randn(2, 128, size, size)
        assert_convolutions_are_right(layer, *[x] * 8)
        assert packed() == processor.library_sums_as_convolution(layer, x)
    x = torch.randn(2, 128, 36, 36)
    assert_convolutions_are_right(layer, *[x] * 8)
    assert packed() == 0


@pytest.mark.usefixtures("library")
def test_too_few_results_prove_nothing() -> None:
    layer = convolution(**POINTS)
    hmp.convert()
    assert_convolutions_are_right(layer, *[torch.randn(1, 128, 9, 9)] * 8)
    assert packed() == 0


@pytest.mark.usefixtures("library")
def test_a_channels_last_weight_decides_the_order_of_the_result() -> None:
    layer = convolution(**CONVOLUTIONS["plain"]).to(memory_format=torch.channels_last)
    hmp.convert()
    x = torch.randn(2, 128, 28, 28)
    assert_convolutions_are_right(layer, *[x] * 8)
    assert convolved_by_hand(layer, x).is_contiguous(memory_format=torch.channels_last)
    assert packed() == 0


@pytest.mark.parametrize("order", ["few", "no batch", "one pixel"])
@pytest.mark.usefixtures("library")
def test_a_convolution_in_another_order_is_not_packed(order: str) -> None:
    layer = convolution()
    shapes = {"few": (2, 128, 9, 9), "no batch": (128, 9, 9), "one pixel": (2, 128, 1, 1)}
    x = torch.randn(shapes[order])
    if order == "one pixel":
        layer = convolution(kernel_size=1)
    hmp.convert()
    with torch.no_grad():
        for _ in range(8):
            assert torch.equal(layer(x), convolved_by_hand(layer, x))
            assert layer(x).stride() == convolved_by_hand(layer, x).stride()
    assert packed() == 0


@pytest.mark.usefixtures("library")
def test_a_weight_that_two_convolutions_share_serves_both() -> None:
    one, other = convolution(), convolution(padding=1)
    other.weight, other.bias = one.weight, one.bias
    hmp.convert()
    x = torch.randn(2, 128, 9, 9).to(memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(12):
            for layer in (one, other):
                assert torch.equal(layer(x), convolved_by_hand(layer, x))


# ---- while others run ------------------------------------------------------------------------------------------------


def casts_of(weight: torch.Tensor) -> list[torch.Tensor]:
    return [one for one in all_bfloat16_tensors() if one.shape == weight.shape]


@pytest.mark.usefixtures("form")
def test_a_weight_that_changes_as_its_plain_cast_goes_is_not_served_from_the_packed_one() -> None:
    hmp.convert()
    layer, x = nn.Linear(272, 240, bias=False), torch.randn(4, 272)

    def change() -> None:
        with torch.no_grad():
            layer.weight[1, 1] = 100.0
            layer(x)

    def change_elsewhere(_: object) -> None:  # as any thread may where torch frees a tensor
        thread = threading.Thread(target=change)
        thread.start()
        thread.join()

    reference = None
    with torch.no_grad():
        for _ in range(12):
            if reference is None and casts_of(layer.weight):
                reference = weakref.ref(casts_of(layer.weight)[0], change_elsewhere)
            layer(x)
        assert reference is not None
        assert (reference() is None) is is_packed_for(layer, x)
        assert_same_bits(layer(x), by_hand(layer, x))
    kept = hmp.report(show=False).weights
    assert (kept.weights, kept.bytes) == (1, 2 * 272 * 240)


class Garbage:
    """Calls a function as it is collected."""

    def __init__(self, collected: Callable[[], object]) -> None:
        self.itself, self.collected = self, collected

    def __del__(self) -> None:
        self.collected()


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("allocations", range(1, 12))
def test_a_weight_may_be_taken_away_while_it_is_about_to_be_packed(allocations: int) -> None:
    hmp.convert()
    layer, x = nn.Linear(256, 256, bias=False), torch.randn(3, 256)
    weight = layer.weight
    taken: list[torch.Tensor] = []

    def take() -> None:
        taken.append(weight.data)
        F.linear(x, weight)

    with torch.no_grad():
        for _ in range(4):
            F.linear(x, weight)
        gc.collect()
        gc.disable()
        former = gc.get_threshold()
        try:
            Garbage(take)
            gc.set_threshold(allocations, 1000, 1000)
            gc.enable()
            result = F.linear(x, weight)
        finally:
            gc.set_threshold(*former)
            gc.enable()
        gc.collect()
        assert taken
        assert_same_bits(result, by_hand(layer, x))
        taken[0][1, 1] = 100.0
        assert_same_bits(layer(x), by_hand(layer, x))
