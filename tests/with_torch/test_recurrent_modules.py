"""Recurrent modules: trained as by hand, and their products where a preset means these alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from habana_mp import _core, hmp
from helpers import processor
from helpers.comparing import assert_same, tensors
from helpers.each import each
from helpers.lists import Converter
from helpers.modules import assert_near, lower, trained, trained_by_hand

BF16 = torch.bfloat16


pytestmark = pytest.mark.usefixtures("alike")


RECURRENT: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "LSTM": (nn.LSTM, {}),
    "LSTM bidirectional of two layers": (nn.LSTM, {"bidirectional": True, "num_layers": 2, "batch_first": True}),
    "LSTM with a projection": (nn.LSTM, {"proj_size": 3}),
    "GRU": (nn.GRU, {}),
    "GRU bidirectional of two layers": (nn.GRU, {"bidirectional": True, "num_layers": 2}),
    "RNN": (nn.RNN, {}),
    "RNN with relu": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
}
RECURRENT_NAMES = ["lstm", "gru", "rnn_tanh", "rnn_relu"]


def recurrent(name: str) -> tuple[nn.Module, torch.Tensor, Any]:
    """A module, its input and its first state."""
    kind, options = RECURRENT[name]
    torch.manual_seed(0)
    module, x = kind(8, 6, **options), torch.randn(4, 4, 8)
    layers = (2 if options.get("bidirectional") else 1) * options.get("num_layers", 1)
    state = torch.randn(layers, 4, options.get("proj_size", 6))
    return module, x, (state, torch.randn(layers, 4, 6)) if kind is nn.LSTM else state


def assert_trained(given: Any, by_hand: Any) -> None:
    """The same results. A module that was cast by hand sums the gradients of its weights over the steps in its own
    precision: these are near."""
    assert_same(given[0], by_hand[0])
    assert_near(given[1], by_hand[1])


def assert_products_alike(made: Any, by_torch: Any) -> None:
    """Asserts the bits of torch's products; without instructions for them, the precisions and nearly the values."""
    if _core.kernels_multiplies_bfloat16():
        assert_same(made, by_torch)
        return
    for one, other in zip(tensors(made), tensors(by_torch), strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.05 * other.abs().max().item())


@each("name", RECURRENT)
@each("state", [False, True])
def test_a_listed_recurrent_module_trains_as_by_hand(converted: Converter, name: str, state: bool) -> None:
    module, x, first = recurrent(name)
    inputs = (x, first) if state else (x,)
    expected = trained_by_hand(module, *inputs)
    converted(bf16=RECURRENT_NAMES)
    assert_trained(trained(module, *inputs), expected)
    assert_trained(trained(module, x.bfloat16(), *inputs[1:]), expected)


@each("name", [one for one in RECURRENT if one.startswith("LSTM") and "projection" not in one])
def test_an_lstm_trains_as_by_hand_where_the_list_names_its_kernel(name: str) -> None:
    module, x, first = recurrent(name)
    has_kernel = processor.has_lstm(BF16)
    expected = trained_by_hand(module, x, first)
    hmp.convert(preset="torch-cpu")
    result, gradients = trained(module, x, first)
    if not has_kernel:
        assert_trained((result, gradients), expected)
        return
    # The kernel gives them in float32, and the cast of a weight by hand rounds them.
    assert_same((result, [one.bfloat16().float() for one in gradients if one is not None]), expected)
    with torch.no_grad():
        assert module(x)[0].dtype is torch.bfloat16


@each("name", RECURRENT)
def test_a_recurrent_module_in_no_list_follows_its_input(converted: Converter, name: str) -> None:
    module, x, first = recurrent(name)
    full, lowered = trained(module, x, first), trained_by_hand(module, x, first)
    converted(bf16=["mm"])
    assert_same(trained(module, x, first), full)
    assert_trained(trained(module, x.bfloat16(), first), lowered)


@each("how", ["list", "preset", "region of weights that are no leaves"])
@each("name", ["LSTM with a projection", "GRU"])
def test_gradients_over_many_steps_are_summed_in_float32(converted: Converter, name: str, how: str) -> None:
    module, _, _ = recurrent(name)
    if "leaves" in how:
        module = nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
    x = torch.randn(500, 4, 8)

    def gradients() -> list[torch.Tensor]:
        module.zero_grad()
        module(x)[0].float().mean().backward()
        return [one.grad for one in module.parameters() if one.grad is not None]

    exact = gradients()
    if how == "list":
        converted(bf16=RECURRENT_NAMES)
    elif how == "preset":
        hmp.convert(preset="torch-cpu")
    with hmp.autocast("cpu") if "region" in how else contextlib.nullcontext():
        for _ in range(2):
            for given, wanted in zip(gradients(), exact, strict=True):
                assert (given - wanted).norm() < 0.02 * wanted.norm()


def run_recurrent(name: str, module: nn.Module, packed: bool) -> Callable[..., Any]:
    """A call of it, of packed sequences or not."""

    def run(x: torch.Tensor, *state: Any) -> Any:
        if not packed:
            return module(x, *state)
        batch_first = bool(RECURRENT[name][1].get("batch_first"))
        result, last = module(pack_padded_sequence(x, torch.tensor([4, 3, 3, 1]), batch_first=batch_first), *state)
        return result.data, last

    return run


def assert_runs_as_by_hand_where_autocast_raises(module: nn.Module, x: torch.Tensor, first: Any) -> None:
    """Of a layer for which the library has no kernel in bfloat16, and torch has other ways only in a layer of it."""
    with torch.autocast("cpu", BF16), pytest.raises(RuntimeError, match="primitive descriptor"):
        module(x, first)
    expected = trained_by_hand(module, x, first)
    hmp.convert(preset="torch-cpu")
    for _ in range(2):
        module.zero_grad()
        assert_trained(trained(module, x, first), expected)
        for without in (torch.no_grad(), torch.inference_mode()):
            with without:
                assert_products_alike(module(x, first), expected[0])


@each("packed", [False, True])
@each("name", RECURRENT)
def test_the_preset_lowers_the_products_of_a_recurrent_module_as_torchs_autocast_does(name: str, packed: bool) -> None:
    module, x, first = recurrent(name)
    run = run_recurrent(name, module, packed)
    is_fused = "LSTM" in name and not packed and "projection" not in name
    if is_fused and not processor.has_lstm(BF16):
        assert_runs_as_by_hand_where_autocast_raises(module, x, first)
        return

    def step(*inputs: Any) -> Any:
        module.zero_grad()
        result = run(*inputs)
        torch.stack([one.float().sum() for one in tree_leaves(result)]).sum().backward()
        return tree_map(torch.Tensor.detach, result), [one.grad for one in module.parameters()]

    for inputs in ((x,), (x, first), (x.bfloat16(),)):
        # With its cache torch sums the gradients of most weights over the steps in the lower precision.
        with torch.autocast("cpu", BF16, cache_enabled=False):
            expected = step(*inputs)
        hmp.convert(preset="torch-cpu")
        for _ in range(2):
            result, gradients = step(*inputs)
            assert_products_alike(result, expected[0])
            if is_fused:  # whose kernel gives gradients in float32, which torch's cast rounds
                gradients = tree_map(lambda one: one.bfloat16().float(), gradients)
            assert_products_alike(gradients, expected[1])
            for without in (torch.no_grad(), torch.inference_mode()):
                with without:
                    assert_products_alike(run(*inputs), expected[0])
        hmp.restore()
        with torch.no_grad():
            for one in module.parameters():
                one.mul_(0.5)


def test_cached_casts_serve_the_products_of_a_recurrent_module_and_follow_its_weights() -> None:
    hmp.reset_report()
    module = nn.GRU(32, 16, num_layers=2)
    x, count = torch.randn(5, 3, 32), len(list(module.parameters()))
    for _ in range(2):
        with torch.no_grad():
            with torch.autocast("cpu"):
                expected = module(x)
            with hmp.autocast("cpu"):
                hits = hmp.report(show=False).weights.hits
                for _ in range(3):
                    assert_products_alike(module(x), expected)
                assert hmp.report(show=False).weights.hits >= hits + 2 * count
            for one in module.parameters():
                one.data += 0.25
    row = next(row for row in hmp.report(show=False) if row.operation == "gru")
    assert (row.precision, row.calls) == ("bf16", 6)


def test_a_list_of_ones_own_means_the_whole_of_a_recurrent_module(converted: Converter) -> None:
    module, x, _ = recurrent("LSTM with a projection")
    converted(bf16=["GRU"], fp32=[])
    assert nn.GRU(8, 6)(x)[0].dtype is torch.bfloat16
    for name, of_state in (("LSTM", torch.bfloat16), ("mkldnn_rnn_layer", torch.float32)):
        converted(bf16=[name], fp32=[])
        assert module(x)[1][1].dtype is of_state
    hmp.convert("O2")
    assert nn.GRU(8, 6)(x)[0].dtype is torch.float32


@pytest.mark.parametrize("kind", [nn.Linear, nn.LSTM])
def test_a_graph_of_operations_as_they_were_called_casts_as_eager_code(kind: type[nn.Module]) -> None:
    module, x = kind(8, 6), torch.randn(4, 4, 8)
    stays = kind is nn.LSTM and not processor.has_lstm(BF16)  # a graph holds the library's kernel, in float32 then
    exact = tensors(module(x))[0]
    hmp.convert(preset="torch-cpu")
    for _ in range(2):  # with a cached cast there is
        expected = tensors(module(x))[0]
    graph = make_fx(lambda one: tensors(module(one))[0], pre_dispatch=True)(x)
    hmp.restore()
    expected = exact if stays else expected
    assert_same(graph(x), expected)
    with torch.no_grad():
        for one in module.parameters():
            one.mul_(2.0)
    assert not torch.equal(graph(x), expected)


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def with_tangent(run: Callable[..., Any], x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        result = forward_ad.unpack_dual(run(forward_ad.make_dual(x, torch.ones_like(x)))[0])
        return result.primal, result.tangent


def while_watched(run: Callable[..., Any], x: torch.Tensor) -> Any:
    with Watching():
        return run(x)


@each(
    "way",
    [
        lambda run, x: torch.func.grad(lambda one: run(one)[0].float().sum())(x),
        with_tangent,
        while_watched,
    ],
)
@each("name", ["LSTM with a projection", "GRU"])
def test_the_products_of_a_recurrent_module_are_lowered_where_somebody_watches(
    name: str, way: Callable[..., Any]
) -> None:
    module, x, _ = recurrent(name)
    with torch.autocast("cpu", cache_enabled=False):
        expected = way(module, x)
    hmp.convert(preset="torch-cpu")
    assert_same(way(module, x), expected)


@each("lowered", ["x", "state", "both"])
@each("name", ["LSTM with a projection", "GRU"])
def test_the_state_of_a_recurrent_module_stays_in_the_precision_that_it_comes_in(name: str, lowered: str) -> None:
    module, x, first = recurrent(name)
    x, first = lower(x) if lowered != "state" else x, lower(first) if lowered != "x" else first
    with torch.autocast("cpu", cache_enabled=False):
        expected = module(x, first)
        again = module(x, expected[1])
    hmp.convert(preset="torch-cpu")
    result = module(x, first)
    assert_products_alike(result, expected)
    assert_products_alike(module(x, result[1]), again)


def test_an_lstm_of_no_sequences_stays_in_float32() -> None:
    hmp.convert(preset="torch-cpu")
    assert nn.LSTM(8, 6)(torch.empty(4, 0, 8))[0].dtype is torch.float32


@pytest.mark.skipif(not _core.kernels_multiplies_bfloat16(), reason="in float32 the products of batches are not slow")
@pytest.mark.parametrize("name", ["LSTM with a projection", "GRU"])
def test_where_no_gradient_is_wanted_sequences_side_by_side_are_one_product(name: str) -> None:
    kind, options = RECURRENT[name]
    module, x = kind(8, 6, **{**options, "batch_first": True}).requires_grad_(False), torch.randn(3, 5, 8)
    hmp.convert(preset="torch-cpu")
    with torch.no_grad(), torch.profiler.profile() as profile:
        module(x)
    assert "aten::bmm" not in {event.name for event in profile.events()}


@pytest.mark.parametrize("traced", [False, True])
def test_compiled_code_makes_the_products_of_a_recurrent_module_as_eager_code_where_it_leaves_them_to_it(
    traced: bool,
) -> None:
    module, x = nn.GRU(8, 6), torch.randn(4, 4, 8)
    with torch._dynamo.config.patch({"allow_rnn": True} if traced else {}):
        # Traced it stays in float32; torch's own compiled code need not give the bits of its eager code.
        exact = module(x)
        if traced:
            compiled = torch.compile(module, backend="aot_eager", fullgraph=True)(x)
            torch.testing.assert_close(compiled, exact)
            exact = compiled
        torch._dynamo.reset()
    hmp.convert(preset="torch-cpu")
    expected = exact if traced else module(x)
    with torch._dynamo.config.patch({"allow_rnn": True} if traced else {}):
        assert_same(torch.compile(module, backend="aot_eager", fullgraph=traced)(x), expected)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_work_in_a_list_and_in_none(converted: Converter, kind: type[nn.Module]) -> None:
    module, x, state = kind(4, 5), torch.randn(2, 4), torch.randn(2, 5)
    first = (state, state * 2) if kind is nn.LSTMCell else state
    full, lowered = trained(module, x, first), trained_by_hand(module, x, first)
    converted(bf16=["LSTMCell", "GRUCell", "RNNCell"])
    assert_same(trained(module, x, first), lowered)
    converted(fp32=["LSTMCell", "GRUCell", "RNNCell"])
    assert_same(trained(module, x, lower(lower(first))), trained(module, x, tree_map(torch.Tensor.float, lower(first))))
    converted()
    assert_same(trained(module, x, first), full)
    assert_same(trained(module, x.bfloat16(), first), lowered)
