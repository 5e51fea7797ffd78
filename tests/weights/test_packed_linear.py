"""Linear layers from weights that torch's CPU library packed: the same bits as without, where they may be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers import processor
from helpers.accelerators import needs_accelerator
from helpers.products import BIASES, INPUTS, assert_same_bits, linear_by_hand
from helpers.weights import kept, packed, products

pytestmark = [
    pytest.mark.processor,
    pytest.mark.usefixtures("counted", "measured_again", "library"),
    needs_accelerator("products"),
]


def packed_layer(bias: bool = True, shape: tuple[int, int] = (160, 144)) -> nn.Linear:
    """Calls a layer until it is packed, if the library gives the same bits on this processor."""
    torch.manual_seed(0)
    hmp.convert()
    layer = nn.Linear(shape[1], shape[0], bias=bias)
    with torch.no_grad():
        for _ in range(8):
            layer(torch.randn(2, shape[1]))
    assert packed() == processor.library_serves(layer, torch.randn(2, shape[1]))
    return layer


def assert_calls_are_right(layer: nn.Linear, x: torch.Tensor) -> None:
    """It makes enough calls for the layer to be packed."""
    with torch.no_grad():
        for _ in range(8):
            assert_same_bits(layer(x), linear_by_hand(layer, x))


def changes_over(calls: Iterable[object]) -> int:
    """Returns how often a weight was packed or unpacked during these calls."""
    counts = [packed(), *(packed() for _ in calls)]
    return sum(one != other for one, other in itertools.pairwise(counts))


@pytest.mark.parametrize("bias", [True, False])
def test_the_results_are_the_same_bits(bias: bool) -> None:
    layer = packed_layer(bias)
    with torch.no_grad():
        for make in INPUTS.values():
            for _ in range(2):
                x = make()
                assert_same_bits(layer(x), linear_by_hand(layer, x))
    assert products() == 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_serves_wherever_nothing_is_recorded(mode: Callable[[], Any]) -> None:
    layer = packed_layer()
    x = torch.randn(3, 144)
    with mode():
        result = layer(x)
        assert_same_bits(result, linear_by_hand(layer, x))
        assert not result.requires_grad
        assert result.is_inference() is (mode is torch.inference_mode)
        assert packed() == processor.library_serves(layer, x)


def test_a_recorded_call_brings_the_plain_cast_back() -> None:
    layer = packed_layer()
    x = torch.randn(3, 144)
    layer(x).sum().backward()
    assert packed() == 0
    gradient, layer.weight.grad = layer.weight.grad, None
    hmp.restore()
    F.linear(x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16()).sum().backward()
    assert torch.equal(gradient, layer.weight.grad)


def test_the_packed_weight_replaces_the_plain_cast() -> None:
    layer = packed_layer(bias=False)
    assert kept().weights == 1
    assert kept().bytes == 2 * layer.weight.numel()


def test_a_changed_weight_is_packed_anew() -> None:
    layer = packed_layer()
    x = torch.randn(3, 144)
    with torch.no_grad():
        before = layer(x)
        layer.weight.mul_(2)
        assert not torch.equal(layer(x), before)
    assert_calls_are_right(layer, x)
    assert packed() == processor.library_serves(layer, x)


def test_a_small_weight_is_not_packed() -> None:
    layer = packed_layer(shape=(100, 100))
    assert packed() == 0
    assert_calls_are_right(layer, torch.randn(2, 100))


@pytest.mark.parametrize("inner", [1100, 2048])
def test_a_transposed_input_gives_the_bits_that_torch_gives_for_it(inner: int) -> None:
    layer = packed_layer(shape=(48, inner))
    for x in (torch.randn(6, inner), torch.randn(inner, 6).t(), torch.randn(2, inner, 3).transpose(1, 2)):
        assert_calls_are_right(layer, x)


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_of_any_form_is_added_as_torch_adds_it(name: str) -> None:
    layer = packed_layer(shape=(160, 160))
    layer.bias = nn.Parameter(BIASES[name](), requires_grad=False)
    assert_calls_are_right(layer, torch.randn(160, 160))


def test_torch_s_library_is_not_used_where_the_user_has_switched_it_off() -> None:
    layer = packed_layer(bias=False)
    x = torch.full((3, 144), 1e-39)
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        assert_same_bits(layer(x), linear_by_hand(layer, x))
        assert layer(x).any()


@pytest.mark.filterwarnings("ignore:torch.autocast is enabled")
def test_torch_s_autocast_has_the_last_word() -> None:
    layer = packed_layer()
    x = torch.randn(3, 144)
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        assert [layer(x).dtype for _ in range(8)] == [torch.float16] * 8
    assert_calls_are_right(layer, x)
    assert packed() == processor.library_serves(layer, x)


def test_calls_that_take_turns_do_not_pack_a_weight_for_ever() -> None:
    layer = packed_layer()
    with torch.no_grad():
        calls = (layer(torch.randn(3, 144) if number % 20 else torch.randn(144)) for number in range(800))
        assert changes_over(calls) <= 30


def test_switched_off_nothing_is_packed() -> None:
    hmp.convert(packed_weights=False)
    assert_calls_are_right(nn.Linear(144, 160), torch.randn(2, 144))
    assert packed() == 0


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
