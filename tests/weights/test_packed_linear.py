"""Linear layers from packed weights: the same bits as without, where they may be."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import _core, hmp
from helpers import processor
from helpers.accelerators import needs_accelerator
from helpers.packed import (
    BIASES,
    INPUTS,
    assert_a_recorded_call_brings_the_plain_cast_back,
    assert_calls_are_right,
    assert_same_bits,
    changes_over,
    is_packed_for,
    linear_by_hand,
    packed_layer,
)
from helpers.weights import packed

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("counted", "measured_again"), needs_accelerator("packed")]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.usefixtures("form")
def test_the_results_are_the_same_bits(bias: bool) -> None:
    layer = packed_layer(bias)
    with torch.no_grad():
        for make in INPUTS.values():
            for _ in range(2):
                x = make()
                assert_same_bits(layer(x), linear_by_hand(layer, x))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.usefixtures("form")
def test_it_serves_wherever_nothing_is_recorded(mode: Callable[[], Any]) -> None:
    layer = packed_layer()
    x = torch.randn(3, 144)
    with mode():
        result = layer(x)
        assert torch.equal(result, linear_by_hand(layer, x))
        assert not result.requires_grad
        assert result.is_inference() is (mode is torch.inference_mode)
        assert packed() == is_packed_for(layer, x)


@pytest.mark.usefixtures("form")
def test_a_recorded_call_brings_the_plain_cast_back() -> None:
    assert_a_recorded_call_brings_the_plain_cast_back(packed_layer(), F.linear)


@pytest.mark.usefixtures("form")
def test_the_packed_weight_replaces_the_plain_cast() -> None:
    layer = packed_layer(bias=False)
    assert hmp.report(show=False).weights.weights == 1
    assert hmp.report(show=False).weights.bytes == 2 * layer.weight.numel()


@pytest.mark.usefixtures("form")
def test_a_wrong_call_raises_what_torch_raises() -> None:
    layer = packed_layer()
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            layer(torch.randn(3, 143))
        with pytest.raises(TypeError):
            F.linear(torch.randn(3, 144), layer.weight, layer.bias, 1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("form", "shape"), [("library", (100, 100)), ("panels", (7, 9)), ("panels", (145, 160))])
def test_a_small_or_odd_weight_is_not_packed(form: processor.Form, shape: tuple[int, int]) -> None:
    _core.weights_assume_packing(form)
    hmp.convert()
    layer = nn.Linear(*shape)
    with torch.no_grad():
        for _ in range(8):
            layer(torch.randn(2, shape[0]))
    assert packed() == 0


@pytest.mark.parametrize("shape", [(16, 16), (8, 40), (64, 10), (200, 3), (270, 5)])
def test_a_small_product_has_the_bits_of_torchs_own_loop(shape: tuple[int, int]) -> None:
    processor.assume_packing("panels")
    for rows, bias in itertools.product((1, 2, 4), (True, False)):
        hmp.convert()
        assert_a_small_product_is_right(shape, rows, bias)
        hmp.restore()


def assert_a_small_product_is_right(shape: tuple[int, int], rows: int, bias: bool) -> None:
    inside, outside = shape
    layer = nn.Linear(inside, outside, bias)
    x, weight, added = processor.sums_of_rounding(torch.empty(rows, inside), outside, seed=rows)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias:
            layer.bias.copy_(added)
        for _ in range(8):
            assert_same_bits(layer(x), linear_by_hand(layer, x))
    if (shape, rows, bias) == ((270, 5), 4, True) and "amx" in _core.kernels_paths():
        return  # there this one is left to the library, whose sums have the same bits
    assert packed() == processor.packs(F.linear, x, (outside, inside), turned=False, bias=bias)


def test_what_does_not_pay_is_not_packed() -> None:
    _core.weights_assume_packing("nothing")
    hmp.convert()
    layer = nn.Linear(144, 160)
    x = torch.randn(2, 144)
    assert_calls_are_right(layer, x)
    assert packed() == 0


SHAPES = [(30, 94), (130, 768), (768, 512), (64, 3000), (1, 2048), (2100, 2048)]


@pytest.mark.parametrize("shape", SHAPES)
def test_whatever_a_measurement_decides_the_bits_are_the_same(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    before = torch.get_num_threads()
    hmp.convert()
    try:
        for bias, threads in itertools.product((True, False), (1, 2)):
            torch.set_num_threads(threads)
            layer = nn.Linear(shape[1], shape[0], bias=bias)
            with torch.no_grad():
                for rows in (1, 1, 1, 1, 1, 1, 2, 7, 1, 133):
                    for x in (
                        torch.randn(rows, shape[1]),
                        torch.full((rows, shape[1]), 1e-39),
                    ):
                        assert torch.equal(layer(x), linear_by_hand(layer, x))
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("panels")
def test_a_call_that_the_panels_cannot_answer_is_answered_otherwise() -> None:
    layer = packed_layer()
    with torch.no_grad():
        for x in (torch.randn(144), torch.randn([1] * 8 + [144]), torch.randn(0, 144), torch.randn(3, 144)):
            for _ in range(6):
                assert torch.equal(layer(x), linear_by_hand(layer, x))
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
                assert torch.equal(layer(x), linear_by_hand(layer, x))


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
            assert torch.equal(layer(x), linear_by_hand(layer, x))


def test_what_was_found_out_for_some_rows_is_not_taken_for_others() -> None:
    torch.manual_seed(0)
    hmp.convert()
    layer = nn.Linear(64, 32)
    with torch.no_grad():
        for rows in (3, 3, 3, 3, 3, 3, 3, 2, 1, 2, 4):
            for x in (torch.randn(rows, 64), torch.full((rows, 64), 1e-39)):
                assert torch.equal(layer(x), linear_by_hand(layer, x))


@pytest.mark.usefixtures("form")
def test_torch_s_library_is_not_used_where_the_user_has_switched_it_off() -> None:
    layer = packed_layer(bias=False)
    x = torch.full((3, 144), 1e-39)
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(layer(x), linear_by_hand(layer, x))
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
            assert torch.equal(layer(x), linear_by_hand(layer, x))
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
        assert torch.equal(traced(x), linear_by_hand(layer, x))
