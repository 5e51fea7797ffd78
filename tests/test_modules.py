"""Modules of torch.nn and what works on them: values are those of casting by hand, weights and buffers stay exact."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import processor
import pytest
import torch
import torch.nn.functional as F
from conftest import Converter, assert_same, run_script, seeded, tensors
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.optim import swa_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from habana_mp import HmpWarning, hmp

pytestmark = pytest.mark.processor

BF16, FP32 = torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def alike(one_thread: None) -> Iterator[None]:
    """The same numbers in each run; none of torch's warnings of old functions."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", HmpWarning)
        yield


def lower(value: Any) -> Any:
    return tree_map(lambda one: one.bfloat16() if isinstance(one, torch.Tensor) and one.dtype is FP32 else one, value)


def assert_near(result: Any, expected: Any, tolerance: float = 0.03) -> None:
    """Equal but for the digits that bfloat16 lacks."""
    got, wanted = tensors(result), tensors(expected)
    assert len(got) == len(wanted) > 0
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        assert (one.float() - other.float()).norm() <= tolerance * (other.float().norm() + 1)


def trained(module: nn.Module, *inputs: Any, **keywords: Any) -> tuple[Any, list[torch.Tensor | None]]:
    """What a module gives, and the gradients of its parameters."""
    module.zero_grad()
    result = module(*inputs, **keywords)
    leaves = [one for one in tensors(result) if one.requires_grad]
    torch.stack([one.float().pow(3).sum() for one in leaves]).sum().backward()
    return tree_map(lambda one: one.detach() if isinstance(one, torch.Tensor) else one, result), [
        parameter.grad for parameter in module.parameters()
    ]


def by_hand(module: nn.Module, *inputs: Any, **keywords: Any) -> tuple[Any, list[torch.Tensor]]:
    """The same with weights and inputs cast by hand; the gradients in float32, as those of the module's weights are."""
    result, gradients = trained(copy.deepcopy(module).bfloat16(), *lower(inputs), **keywords)
    return result, [one.float() for one in gradients if one is not None]


# ---- recurrent -----------------------------------------------------------------------------------------------------

RECURRENT: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "LSTM": (nn.LSTM, {}),
    "LSTM bidirectional": (nn.LSTM, {"bidirectional": True}),
    "LSTM of two layers": (nn.LSTM, {"num_layers": 2}),
    "LSTM batch first": (nn.LSTM, {"batch_first": True}),
    "LSTM with a projection": (nn.LSTM, {"proj_size": 3}),
    "LSTM without bias": (nn.LSTM, {"bias": False}),
    "GRU": (nn.GRU, {}),
    "GRU bidirectional of two layers": (nn.GRU, {"bidirectional": True, "num_layers": 2}),
    "GRU batch first": (nn.GRU, {"batch_first": True}),
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


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("state", [False, True], ids=["no state", "state"])
def test_a_listed_recurrent_module_trains_as_by_hand(converted: Converter, name: str, state: bool) -> None:
    module, x, first = recurrent(name)
    inputs = (x, first) if state else (x,)
    expected = by_hand(module, *inputs)
    converted(bf16=RECURRENT_NAMES)
    assert_trained(trained(module, *inputs), expected)
    assert_trained(trained(module, x.bfloat16(), *inputs[1:]), expected)


@pytest.mark.parametrize("name", [one for one in RECURRENT if one.startswith("LSTM") and "projection" not in one])
def test_an_lstm_trains_as_by_hand_where_the_list_names_its_kernel(name: str) -> None:
    module, x, first = recurrent(name)
    has_kernel = processor.has_lstm(BF16)
    expected = by_hand(module, x, first)
    hmp.convert(preset="torch-cpu")
    result, gradients = trained(module, x, first)
    if not has_kernel:
        assert_trained((result, gradients), expected)
        return
    # The kernel gives them in float32, and the cast of a weight by hand rounds them.
    assert_same((result, [one.bfloat16().float() for one in gradients if one is not None]), expected)
    with torch.no_grad():
        assert module(x)[0].dtype is torch.bfloat16


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_recurrent_module_in_no_list_follows_its_input(converted: Converter, name: str, training: bool) -> None:
    module, x, first = recurrent(name)
    module.train(training)
    full, lowered = trained(module, x, first), by_hand(module, x, first)
    converted(bf16=["mm"])
    assert_same(trained(module, x, first), full)
    assert_trained(trained(module, x.bfloat16(), first), lowered)


@pytest.mark.parametrize("how", ["list", "preset", "region", "region without a cache", "weights that are no leaves"])
@pytest.mark.parametrize("name", ["LSTM with a projection", "GRU", "RNN"])
def test_gradients_over_many_steps_are_summed_in_float32(converted: Converter, name: str, how: str) -> None:
    module, _, _ = recurrent(name)
    if "leaves" in how:
        module = nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
    x = torch.randn(1500, 4, 8)

    def gradients() -> list[torch.Tensor]:
        module.zero_grad()
        module(x)[0].float().mean().backward()
        return [one.grad for one in module.parameters() if one.grad is not None]

    exact = gradients()
    if how == "list":
        converted(bf16=RECURRENT_NAMES)
    elif how == "preset":
        hmp.convert(preset="torch-cpu")
    with contextlib.ExitStack() as region:
        if how not in ("list", "preset"):
            region.enter_context(hmp.autocast("cpu", cache_enabled="without" not in how))
        for _ in range(2):
            for given, wanted in zip(gradients(), exact, strict=True):
                assert (given - wanted).norm() < 0.02 * wanted.norm()


@pytest.mark.parametrize("name", RECURRENT)
def test_packed_sequences_go_through_recurrent_modules(converted: Converter, name: str) -> None:
    module, x, first = recurrent(name)
    batch_first = bool(RECURRENT[name][1].get("batch_first"))

    def run(one: nn.Module, x: torch.Tensor, *state: Any) -> Any:
        result, last = one(pack_padded_sequence(x, torch.tensor([4, 3, 3, 1]), batch_first=batch_first), *state)
        return pad_packed_sequence(result)[0], last

    expected = run(copy.deepcopy(module).bfloat16(), x.bfloat16(), lower(first))
    unlisted = run(module, x, first)
    converted(bf16=RECURRENT_NAMES)
    assert_same(run(module, x, first), expected)
    assert_same(run(module, x.bfloat16(), first), expected)
    hmp.convert()
    assert_same(run(module, x, first), unlisted)
    assert_same(run(module, x.bfloat16(), first), expected)


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
    expected = by_hand(module, x, first)
    hmp.convert(preset="torch-cpu")
    for _ in range(2):
        module.zero_grad()
        assert_trained(trained(module, x, first), expected)
        for without in (torch.no_grad(), torch.inference_mode()):
            with without:
                assert_same(module(x, first), expected[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("name", RECURRENT)
def test_the_preset_lowers_the_products_of_a_recurrent_module_as_torchs_autocast_does(
    name: str, packed: bool, dtype: torch.dtype
) -> None:
    if "LSTM" in name and not packed and dtype is torch.float16:
        dtype = torch.bfloat16  # processors have the kernel for both, or for this alone
    module, x, first = recurrent(name)
    run = run_recurrent(name, module, packed)
    is_fused = "LSTM" in name and not packed and "projection" not in name
    if is_fused and not processor.has_lstm(dtype):
        assert_runs_as_by_hand_where_autocast_raises(module, x, first)
        return

    def step(*inputs: Any) -> Any:
        module.zero_grad()
        result = run(*inputs)
        # Not of squares, whose gradient float16 may not hold.
        torch.stack([one.float().sum() for one in tree_leaves(result)]).sum().backward()
        return tree_map(torch.Tensor.detach, result), [one.grad for one in module.parameters()]

    for inputs in ((x,), (x, first), (x.to(dtype),)):
        # With its cache torch sums the gradients of most weights over the steps in the lower precision.
        with torch.autocast("cpu", dtype, cache_enabled=False):
            expected = step(*inputs)
        hmp.convert(preset="torch-cpu", dtype=dtype)
        for _ in range(2):
            result, gradients = step(*inputs)
            assert_same(result, expected[0])
            if is_fused:  # whose kernel gives gradients in float32, which torch's cast rounds
                gradients = tree_map(lambda one: one.to(dtype).float(), gradients)
            assert_same(gradients, expected[1])
            for without in (torch.no_grad(), torch.inference_mode()):
                with without:
                    assert_same(run(*inputs), expected[0])
        hmp.restore()
        with torch.no_grad():
            for one in module.parameters():
                one.mul_(0.5)


def test_kept_casts_serve_the_products_of_a_recurrent_module_and_follow_its_weights() -> None:
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
                    assert_same(module(x), expected)
                assert hmp.report(show=False).weights.hits >= hits + 2 * count
            for one in module.parameters():
                one.data += 0.25
    row = next(row for row in hmp.report(show=False) if row.operation == "gru")
    assert (row.precision, row.calls) == ("bf16", 6)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_a_users_hook_of_saved_tensors_computes_outside_of_the_products_of_a_recurrent_module(
    kind: type[nn.RNNBase],
) -> None:
    seen = set()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        with hmp.disable_casts():
            seen.add(
                (torch.mm(tensor.new_ones(2, 2).float(), torch.ones(2, 2)).dtype, torch.is_autocast_enabled("cpu"))
            )
        return tensor

    hmp.convert(preset="torch-cpu")
    x = pack_padded_sequence(torch.randn(4, 4, 8), torch.tensor([4, 3, 3, 1]))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        assert kind(8, 6)(x)[0].data.dtype is torch.float32
    assert seen == {(torch.float32, False)}


def test_a_list_of_ones_own_means_the_whole_of_a_recurrent_module(converted: Converter) -> None:
    module, x, _ = recurrent("LSTM with a projection")
    converted(bf16=["GRU"], fp32=[])
    assert nn.GRU(8, 6)(x)[0].dtype is torch.bfloat16
    for name, of_state in (("LSTM", torch.bfloat16), ("mkldnn_rnn_layer", torch.float32)):
        converted(bf16=[name], fp32=[])
        assert module(x)[1][1].dtype is of_state
    hmp.convert("O2")
    assert nn.GRU(8, 6)(x)[0].dtype is torch.float32


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_the_products_of_a_recurrent_module_stay_in_float32_where_torch_records_it(
    kind: type[nn.RNNBase], packed: bool
) -> None:
    module, x = kind(8, 6).requires_grad_(False), torch.randn(4, 4, 8)
    run = run_recurrent(kind.__name__, module, packed)
    expected = run(x)[0]
    hmp.convert(preset="torch-cpu")
    assert_same(torch.jit.trace(run, x)(x)[0], expected)
    if not packed:  # no tracer but jit's knows packed sequences
        assert_same(make_fx(lambda one: run(one)[0])(x)(x), expected)
        assert_same(torch.export.export(module, (x,)).module()(x)[0], expected)


@pytest.mark.parametrize("kind", [nn.Linear, nn.LSTM])
def test_a_graph_of_operations_as_they_were_called_casts_as_eager_code(kind: type[nn.Module]) -> None:
    module, x = kind(8, 6), torch.randn(4, 4, 8)
    stays = kind is nn.LSTM and not processor.has_lstm(BF16)  # a graph holds the library's kernel, in float32 then
    exact = tensors(module(x))[0]
    hmp.convert(preset="torch-cpu")
    for _ in range(2):  # with a kept cast there is
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


class Subclass(torch.Tensor):
    pass


def with_tangent(run: Callable[..., Any], x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        result = forward_ad.unpack_dual(run(forward_ad.make_dual(x, torch.ones_like(x)))[0])
        return result.primal, result.tangent


def while_watched(run: Callable[..., Any], x: torch.Tensor) -> Any:
    with Watching():
        return run(x)


@pytest.mark.parametrize(
    "way",
    [
        lambda run, x: torch.func.grad(lambda one: run(one)[0].float().sum())(x),
        lambda run, x: torch.func.vjp(run, x)[0],
        with_tangent,
        while_watched,
        lambda run, x: tree_map(lambda one: one.as_subclass(torch.Tensor), run(x.as_subclass(Subclass))),
    ],
)
@pytest.mark.parametrize("name", ["LSTM with a projection", "GRU", "RNN"])
def test_the_products_of_a_recurrent_module_are_lowered_where_somebody_watches(
    name: str, way: Callable[..., Any]
) -> None:
    module, x, _ = recurrent(name)
    with torch.autocast("cpu", cache_enabled=False):
        expected = way(module, x)
    hmp.convert(preset="torch-cpu")
    assert_same(way(module, x), expected)


@pytest.mark.parametrize("lowered", ["x", "state", "both"])
@pytest.mark.parametrize("name", ["LSTM with a projection", "GRU", "RNN"])
def test_the_state_of_a_recurrent_module_stays_in_the_precision_that_it_comes_in(name: str, lowered: str) -> None:
    module, x, first = recurrent(name)
    x, first = lower(x) if lowered != "state" else x, lower(first) if lowered != "x" else first
    with torch.autocast("cpu", cache_enabled=False):
        expected = module(x, first)
        again = module(x, expected[1])
    hmp.convert(preset="torch-cpu")
    result = module(x, first)
    assert_same(result, expected)
    assert_same(module(x, result[1]), again)


def test_an_lstm_of_no_sequences_stays_in_float32() -> None:
    hmp.convert(preset="torch-cpu")
    assert nn.LSTM(8, 6)(torch.empty(4, 0, 8))[0].dtype is torch.float32


@pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="this torch does not say that it exports")
def test_an_exported_lstm_runs_lowered_as_in_eager_code() -> None:
    module, x = nn.LSTM(8, 6), torch.randn(4, 4, 8)
    hmp.convert(preset="torch-cpu")
    expected = module(x)[0]
    given = torch.export.export(module, (x,)).module()(x)[0]
    assert given.dtype is expected.dtype is torch.bfloat16
    assert_near(given, expected)


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
    if traced and not hasattr(torch._dynamo.config, "allow_rnn"):
        pytest.skip("this torch goes into recurrent modules unasked")
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


def test_torchs_own_autocast_has_the_last_word_on_a_recurrent_module() -> None:
    module, x = nn.GRU(8, 6), torch.randn(4, 4, 8)
    with torch.autocast("cpu", torch.float16):
        expected = module(x)
    hmp.convert(preset="torch-cpu")
    with pytest.warns(hmp.HmpWarning, match="torch.autocast"), torch.autocast("cpu", torch.float16):
        assert_same(module(x), expected)
    with torch.autocast("cpu", enabled=False):
        assert module(x)[0].dtype is torch.float32


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_work_in_a_list_and_in_none(converted: Converter, kind: type[nn.Module]) -> None:
    module, x, state = kind(4, 5), torch.randn(2, 4), torch.randn(2, 5)
    first = (state, state * 2) if kind is nn.LSTMCell else state
    full, lowered = trained(module, x, first), by_hand(module, x, first)
    converted(bf16=["LSTMCell", "GRUCell", "RNNCell"])
    assert_same(trained(module, x, first), lowered)
    converted(fp32=["LSTMCell", "GRUCell", "RNNCell"])
    assert_same(trained(module, x, lower(lower(first))), trained(module, x, tree_map(torch.Tensor.float, lower(first))))
    converted()
    assert_same(trained(module, x, first), full)
    assert_same(trained(module, x.bfloat16(), first), lowered)


# ---- attention and transformers ------------------------------------------------------------------------------------

ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "bias of k and v": {"add_bias_kv": True},
    "zero attention": {"add_zero_attn": True},
    "own sizes of k and v": {"kdim": 5, "vdim": 7},
    "without bias": {"bias": False},
}
MASKS: dict[str, dict[str, type]] = {
    "no mask": {},
    "padding": {"key_padding_mask": bool},
    "bool mask": {"attn_mask": bool},
    "float mask": {"attn_mask": float},
    "both": {"key_padding_mask": float, "attn_mask": float},
}


def attention(name: str, masks: str) -> tuple[nn.Module, list[torch.Tensor], dict[str, Any]]:
    options = ATTENTION[name]
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, **options)
    query = torch.randn(4, 4, 8)
    sources = [torch.randn(4, 4, options.get(size, 8)) for size in ("kdim", "vdim")]
    given = {}
    for where, kind in MASKS[masks].items():
        mask = torch.eye(4, dtype=torch.bool).flip(0)
        given[where] = mask if kind is bool else torch.zeros(4, 4).masked_fill(mask, -torch.inf)
    return module, [query, *sources] if sources[0].shape[-1] != 8 else [query] * 3, given


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("need_weights", [False, True], ids=["no weights", "weights"])
def test_attention_runs_under_the_default_lists(name: str, masks: str, need_weights: bool) -> None:
    module, inputs, given = attention(name, masks)
    module = module.train()
    expected = trained(module, *inputs, need_weights=need_weights, **given)
    module.eval()
    hmp.convert()
    ours = trained(module.train(), *inputs, need_weights=need_weights, **given)
    assert_near(ours, expected)
    assert ours[0][0].dtype is BF16
    assert all(gradient is None or gradient.dtype is FP32 for gradient in ours[1])
    with torch.no_grad():  # where the fused kernel could be taken
        fused = module.eval()(*inputs, need_weights=need_weights, **given)
        mixed = module(*lower(inputs), need_weights=need_weights, **given)
    assert_same(fused, ours[0])
    assert_near(mixed, expected[0])


# "bias of k and v" repeats its bias before it is cast, so that its gradient is summed in float32.
@pytest.mark.parametrize("name", [name for name in ATTENTION if name != "bias of k and v"])
def test_attention_whose_operations_are_all_listed_equals_casting_by_hand(converted: Converter, name: str) -> None:
    module, inputs, _ = attention(name, "no mask")
    expected = by_hand(module, *inputs)
    converted(bf16=["linear", "bmm", "baddbmm", "softmax", "mul", "cat", "mean", "t"])
    assert_same(trained(module, *inputs), expected)


ACTIVATIONS = {"relu": "relu", "F.relu": F.relu, "gelu": "gelu", "nn.GELU": nn.GELU()}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm_first", [False, True], ids=["norm last", "norm first"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["sequence first", "batch first"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_the_fused_encoder_does_not_slip_past_the_lists(
    activation: str, norm_first: bool, batch_first: bool, padded: bool
) -> None:
    layer = nn.TransformerEncoderLayer(
        16, 2, 32, activation=ACTIVATIONS[activation], norm_first=norm_first, batch_first=batch_first
    )
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(5, 5, 16)
    padding = torch.ones(5, 5).triu(1).bool() if padded else None

    @torch.no_grad()
    def run(fused: bool) -> list[torch.Tensor]:
        torch.backends.mha.set_fastpath_enabled(fused)
        try:
            results = [encoder(x, src_key_padding_mask=padding), layer.eval()(x, src_key_padding_mask=padding)]
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        hidden = torch.zeros(5, 5, 1).bool() if padding is None else padding[..., None]
        return [one.masked_fill(hidden if batch_first else hidden.transpose(0, 1), 0) for one in results]

    full = run(True)
    hmp.convert()
    ours = run(True)
    assert_same(ours, run(False))
    assert_near(ours, full)
    assert not torch.equal(ours[0], full[0])
    with hmp.disable_casts():
        assert_same(run(True), full)


@pytest.mark.parametrize("norm_first", [False, True], ids=["norm last", "norm first"])
def test_a_whole_transformer_trains_no_worse_than_by_hand(norm_first: bool) -> None:
    model = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, norm_first=norm_first, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    inputs, keywords = (torch.randn(3, 5, 16), torch.randn(3, 4, 16)), {"tgt_mask": mask, "tgt_is_causal": True}
    expected, hand = trained(model, *inputs, **keywords), by_hand(model, *inputs, **lower(keywords))
    hmp.convert()
    ours = trained(model, *inputs, **keywords)
    for one, other, full in zip(tensors(ours), tensors(hand), tensors(expected), strict=True):
        assert (one - full).norm() <= 1.5 * (other - full).norm() + 0.01 * full.norm() + 0.01
    assert {gradient.dtype for gradient in tensors(ours[1])} == {FP32}


# ---- embeddings ----------------------------------------------------------------------------------------------------

INDICES = torch.tensor([[1, 2], [1, 3]])


@pytest.mark.parametrize("options", [{}, {"max_norm": 0.5}, {"padding_idx": 1}, {"scale_grad_by_freq": True}], ids=str)
def test_embeddings_train_in_a_list_and_in_none(converted: Converter, options: dict[str, Any]) -> None:
    def run() -> Any:
        module = nn.Embedding(6, 4, **options)
        return trained(module, INDICES), module.weight.detach()

    expected = seeded(run)
    hmp.convert()
    assert_same(seeded(run), expected)
    converted(bf16=["embedding"])
    (result, gradients), weight = seeded(run)
    assert_same(result, lower(expected[0][0]))
    assert_near(gradients, expected[0][1])
    assert_same((gradients[0].dtype, weight), (FP32, expected[1]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags_train_in_a_list_and_in_none(converted: Converter, mode: Any) -> None:
    module, weights = nn.EmbeddingBag(6, 4, mode=mode), torch.rand(2, 2)
    keywords = {"per_sample_weights": weights} if mode == "sum" else {}
    expected = trained(module, INDICES, **keywords)
    hmp.convert()
    assert_same(trained(module, INDICES, **keywords), expected)
    assert_same(trained(module, INDICES, **lower(keywords)), trained(module, INDICES, **raised(lower(keywords))))
    converted(bf16=["embedding_bag"])
    result, gradients = trained(module, INDICES, **keywords)
    assert_same(result, lower(expected[0]))  # summed in float32, and rounded once
    assert_near(gradients, expected[1])


def raised(value: Any) -> Any:
    return tree_map(lambda one: one.float() if isinstance(one, torch.Tensor) and one.dtype is BF16 else one, value)


def test_sparse_gradients_of_an_embedding_are_stepped_exactly() -> None:
    def run() -> Any:
        module = nn.Embedding(6, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(module.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            module(INDICES).float().pow(2).sum().backward()
            assert module.weight.grad is not None
            assert module.weight.grad.is_sparse
            with hmp.disable_casts():
                optimizer.step()
        return module.weight.detach()

    expected = seeded(run)
    hmp.convert()
    assert_same(seeded(run), expected)


SPARSE: dict[str, Callable[[torch.Tensor, bool], torch.Tensor]] = {
    "embedding": lambda weight, sparse: F.embedding(INDICES, weight, sparse=sparse),
    "embedding by keyword": lambda weight, sparse: torch.embedding(weight, INDICES, sparse=sparse),
    "embedding_bag": lambda weight, sparse: F.embedding_bag(INDICES, weight, mode="sum", sparse=sparse),
    "gather": lambda weight, sparse: weight.gather(0, INDICES, sparse_grad=sparse),
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("side", ["bf16", "fp32"])
def test_an_operation_in_a_list_keeps_its_weight_where_the_gradient_is_sparse(
    converted: Converter, name: str, side: str
) -> None:
    dtype, other = (FP32, BF16) if side == "bf16" else (BF16, FP32)
    found = []
    for convert in (False, True):
        weight = torch.linspace(-1, 1, 24).reshape(6, 4).to(dtype).requires_grad_()
        if convert:
            converted(**{side: [name.split()[0]]})
            assert SPARSE[name](weight, False).dtype is other
        out = SPARSE[name](weight, True)
        out.float().pow(2).sum().backward()
        assert weight.grad is not None
        assert weight.grad.is_sparse
        found.append([out.detach(), weight.grad.to_dense()])
    assert_same(*found)


# ---- making, copying and keeping modules ---------------------------------------------------------------------------

INITIALISERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "uniform": nn.init.uniform_,
    "normal": nn.init.normal_,
    "trunc_normal": nn.init.trunc_normal_,
    "constant": lambda x: nn.init.constant_(x, 0.3),
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "kaiming_uniform": nn.init.kaiming_uniform_,
    "kaiming_normal": nn.init.kaiming_normal_,
    "orthogonal": lambda x: nn.init.orthogonal_(x, gain=1.7),
    "sparse": lambda x: nn.init.sparse_(x, 0.3),
    "eye": nn.init.eye_,
}


@pytest.mark.parametrize("name", INITIALISERS)
def test_initialising_after_construction_is_exact(name: str) -> None:
    def run() -> list[torch.Tensor]:
        return [INITIALISERS[name](torch.empty(shape)) for shape in ((9, 9), (3, 9), (9, 3))]

    expected = seeded(run)
    hmp.convert()
    assert_same(seeded(run), expected)
    hmp.convert("O2")
    assert_same(seeded(run), expected)


RESET = [
    nn.LSTM(3, 4),
    nn.Bilinear(3, 3, 3),
    nn.Embedding(4, 5, padding_idx=1),
    nn.Conv2d(3, 3, 3),
    nn.MultiheadAttention(8, 2),
    nn.BatchNorm1d(4),
]


@pytest.mark.parametrize("module", RESET, ids=lambda one: type(one).__name__)
def test_resetting_parameters_is_exact(module: Any) -> None:
    def run() -> list[torch.Tensor]:
        made = copy.deepcopy(module)
        for one in made.modules():
            getattr(one, "reset_parameters", getattr(one, "_reset_parameters", lambda: None))()
        return list(made.state_dict().values())

    expected = seeded(run)
    hmp.convert()
    assert_same(seeded(run), expected)


@pytest.mark.parametrize("given", [FP32, BF16], ids=str)
def test_lazy_modules_are_materialised_exactly(given: torch.dtype) -> None:
    def run(dtype: torch.dtype) -> list[torch.Tensor]:
        model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
        model(torch.ones(2, 3, 6, 6).to(dtype))
        return list(model.parameters())

    expected = seeded(lambda: run(FP32))
    hmp.convert()
    assert_same(seeded(lambda: run(given)), expected)


@pytest.mark.parametrize("to", [BF16, torch.float64], ids=str)
def test_lazy_modules_can_be_converted_before_they_are_materialised(to: torch.dtype) -> None:
    def run() -> list[torch.Tensor]:
        model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(5)).to(to)
        model(torch.ones(2, 3, 6, 6, dtype=to))
        return list(model.parameters())

    expected = seeded(run)
    hmp.convert()
    assert_same(seeded(run), expected)


def test_a_module_made_without_memory_is_filled_exactly() -> None:
    def run() -> list[torch.Tensor]:
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.LSTM(4, 4))
        assert model[0](torch.ones(2, 4, device="meta")).is_meta
        model = model.to_empty(device="cpu")
        for module in model:
            module.reset_parameters()
        skipped = nn.utils.skip_init(nn.Linear, 3, 4)
        return [*model.parameters(), nn.init.normal_(skipped.weight)]

    expected = seeded(run)
    hmp.convert()
    assert_same(seeded(run), expected)


def test_synchronised_batch_norm_keeps_state_and_runs_in_eval() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU())
    model[0].running_mean.uniform_()
    x = torch.randn(2, 3, 4, 4)
    hmp.convert()
    expected = model.eval()(x)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
    assert isinstance(converted[0], nn.SyncBatchNorm)
    assert_same(converted.state_dict(), model.state_dict())
    assert_same(converted.eval()(x), expected)


@pytest.mark.parametrize(
    "options", [{"momentum": None}, {"track_running_stats": False}, {"affine": False}, {"momentum": 0.3}], ids=str
)
def test_batch_norm_keeps_its_statistics_as_by_hand(options: dict[str, Any]) -> None:
    module = nn.BatchNorm1d(6, **options)
    hand, x = copy.deepcopy(module), [torch.randn(4, 6, 5) * 3 + 1 for _ in range(3)]
    expected = [hand(one.bfloat16()) for one in x]
    hmp.convert()
    assert_same([module(one) for one in x], expected)
    for one, other in zip(module.buffers(), hand.buffers(), strict=True):
        assert torch.equal(one, other)
        assert one.dtype in (FP32, torch.int64)
    evaluated = module.eval()(x[0])
    hmp.restore()
    assert_same(evaluated, hand.eval()(x[0].bfloat16()))


def test_statistics_computed_anew_are_those_of_lowered_activations() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    hand, batches = copy.deepcopy(model), [torch.randn(2, 3, 8, 8) for _ in range(3)]
    hand[0].bfloat16()
    swa_utils.update_bn(lower(batches), hand)
    hmp.convert()
    swa_utils.update_bn(batches, model)
    assert_same(dict(model.named_buffers()), dict(hand.named_buffers()))


def test_copies_load_and_call_functionally() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    x, state = torch.randn(3, 4), {key: value.clone() for key, value in model.state_dict().items()}
    hmp.convert()
    expected = trained(copy.deepcopy(model), x)
    other = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    other.load_state_dict({key: value.double() for key, value in state.items()})
    assert_same(other.state_dict(), state)
    assert_same(trained(other, x), expected)
    assigned = copy.deepcopy(model)
    assigned.load_state_dict(state, assign=True)
    functional = torch.func.functional_call(model, dict(model.named_parameters()), (x,))
    assert_same(functional, expected[0])
    copied = copy.deepcopy(other)
    assert_same(copied.state_dict(), other.state_dict())


WHOLE = """
import sys, torch
sys.modules["habana_mp"] = None  # importing it raises
models = torch.load(sys.argv[1], weights_only=False)
print({value.dtype for value in models.state_dict().values()} | {model(torch.ones(1, 2, 8)).dtype for model in models})
"""


def test_whole_models_saved_while_converted_are_read_without_us(tmp_path: Path) -> None:
    models = nn.ModuleList(
        nn.TransformerEncoderLayer(8, 2, 16, activation=function).eval() for function in (F.relu, torch.relu, F.gelu)
    )
    hmp.convert()
    for model in models:
        model(torch.ones(1, 2, 8)).sum().backward()
    torch.save(models, tmp_path / "model.pt")
    done = run_script(WHOLE, str(tmp_path / "model.pt"))
    assert (done.returncode, done.stdout) == (0, "{torch.float32}\n"), done.stderr


def test_hooks_see_what_the_module_gives_and_gradients_keep_their_dtypes() -> None:
    seen: dict[str, torch.dtype] = {}
    module = nn.Linear(4, 4)
    module.register_forward_pre_hook(lambda _, given: seen.update(before=given[0].dtype))
    module.register_forward_hook(lambda _, given, result: seen.update(after=result.dtype))
    module.register_full_backward_hook(lambda _, given, result: seen.update(to=given[0].dtype, came=result[0].dtype))
    module.weight.register_hook(lambda gradient: seen.update(weight=gradient.dtype))
    module.bias.register_post_accumulate_grad_hook(lambda one: seen.update(bias=one.grad.dtype))
    x = torch.randn(2, 4, requires_grad=True)
    hmp.convert()
    module(x).float().sum().backward()
    assert seen == {"before": FP32, "after": BF16, "to": FP32, "came": BF16, "weight": FP32, "bias": FP32}
    assert x.grad is not None
    assert x.grad.dtype is FP32


def test_a_hook_may_replace_what_goes_in_and_out() -> None:
    module = nn.Linear(4, 4)
    module.register_forward_pre_hook(lambda _, given: (given[0] * 2,))
    module.register_forward_hook(lambda _, given, result: result.float())
    x = torch.randn(2, 4)
    expected = F.linear(lower(x) * 2, lower(module.weight), lower(module.bias)).float()
    hmp.convert()
    assert_same(module(x), expected)


# ---- losses and resampling -----------------------------------------------------------------------------------------

G = torch.Generator().manual_seed(1)
SCORES, TARGETS = torch.randn(4, 6, generator=G), torch.rand(4, 6, generator=G)
LABELS, SIGNS = torch.tensor([0, 1, 2, 3]), torch.tensor([1.0, -1.0, 1.0, -1.0])
# The loss, its inputs, and which of them are lowered: results of a model. The others are targets.
LOSSES: dict[str, tuple[nn.Module, tuple[Any, ...], int]] = {
    "L1Loss": (nn.L1Loss(), (SCORES, TARGETS), 1),
    "MSELoss": (nn.MSELoss(), (SCORES, TARGETS), 1),
    "SmoothL1Loss": (nn.SmoothL1Loss(), (SCORES, TARGETS), 1),
    "HuberLoss": (nn.HuberLoss(), (SCORES, TARGETS), 1),
    "BCELoss": (nn.BCELoss(TARGETS), (SCORES.sigmoid(), TARGETS), 1),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(pos_weight=TARGETS[0]), (SCORES, TARGETS), 1),
    "SoftMarginLoss": (nn.SoftMarginLoss(), (SCORES, TARGETS), 1),
    "PoissonNLLLoss": (nn.PoissonNLLLoss(), (SCORES, TARGETS), 1),
    "KLDivLoss": (nn.KLDivLoss(reduction="batchmean"), (SCORES, TARGETS), 1),
    "HingeEmbeddingLoss": (nn.HingeEmbeddingLoss(), (SCORES[:, 0], SIGNS), 1),
    "CosineEmbeddingLoss": (nn.CosineEmbeddingLoss(), (SCORES, TARGETS, SIGNS), 2),
    "MarginRankingLoss": (nn.MarginRankingLoss(), (SCORES[:, 0], TARGETS[:, 0], SIGNS), 2),
    "TripletMarginLoss": (nn.TripletMarginLoss(), (SCORES, TARGETS, -TARGETS), 1),
    "TripletMarginWithDistanceLoss": (nn.TripletMarginWithDistanceLoss(), (SCORES, TARGETS, -TARGETS), 1),
    "MultiMarginLoss": (nn.MultiMarginLoss(weight=TARGETS[0]), (SCORES, LABELS), 1),
    "MultiLabelMarginLoss": (nn.MultiLabelMarginLoss(), (SCORES, torch.tensor([[0, 3, -1, 0, 0, 0]] * 4)), 1),
    "MultiLabelSoftMarginLoss": (nn.MultiLabelSoftMarginLoss(), (SCORES, TARGETS.round()), 1),
    "GaussianNLLLoss": (nn.GaussianNLLLoss(), (SCORES, TARGETS, TARGETS + 1), 1),
    "NLLLoss": (nn.NLLLoss(weight=TARGETS[0]), (SCORES, LABELS), 1),
    "NLLLoss of images": (nn.NLLLoss(), (SCORES[..., None, None], LABELS[:, None, None]), 1),
    "CrossEntropyLoss": (nn.CrossEntropyLoss(weight=TARGETS[0], label_smoothing=0.1), (SCORES, LABELS), 1),
    "CrossEntropyLoss of probabilities": (nn.CrossEntropyLoss(), (SCORES, TARGETS), 1),
    "CTCLoss": (
        nn.CTCLoss(),
        (SCORES[:, None].log_softmax(-1), LABELS[None, 1:], torch.tensor([4]), torch.tensor([3])),
        1,
    ),
}
#: They multiply in Python; `mul` is in the lower list.
MULTIPLYING = {"GaussianNLLLoss", "MultiLabelSoftMarginLoss"}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_lowered_scores_is_computed_in_float32(name: str) -> None:
    module, given, results = LOSSES[name]
    lowered = tuple(lower(one) if index < results else one for index, one in enumerate(given))

    def run(inputs: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        scores = inputs[0].detach().clone().requires_grad_()
        loss = module(scores, *inputs[1:])
        loss.backward()
        assert scores.grad is not None
        assert scores.grad.dtype is scores.dtype
        return loss.detach(), scores.grad

    expected_full, expected = run(given), run(raised(lowered))
    hmp.convert()
    loss, gradient = run(lowered)
    if name in MULTIPLYING:
        assert_near((loss, gradient), expected)
        return
    assert loss.dtype is FP32
    assert_near(loss, expected[0], 1e-4)
    assert_near(gradient, expected[1], 0.01)
    assert_same(run(given), expected_full)


def test_an_adaptive_softmax_trains() -> None:
    module, x, labels = nn.AdaptiveLogSoftmaxWithLoss(16, 20, [4, 10]), torch.randn(12, 16), torch.arange(12)
    expected = trained(module, x, labels), module.log_prob(x)
    hmp.convert()
    for given in (x, x.bfloat16()):
        assert_near((trained(module, given, labels), module.log_prob(given)), expected)
        assert module.predict(given).shape == (12,)


IMAGES = torch.randn(1, 2, 4, 6, generator=G)
GRID = torch.rand(1, 3, 5, 2, generator=G) * 2 - 1
RESAMPLING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Fold": lambda x: nn.Fold((4, 3), 2)(x.reshape(1, 8, 6)),
    "Unfold": nn.Unfold(2),
    "PixelShuffle": lambda x: nn.PixelShuffle(2)(x.reshape(1, 4, 3, 4)),
    "PixelUnshuffle": nn.PixelUnshuffle(2),
    "nearest": nn.Upsample(scale_factor=2, mode="nearest"),
    "nearest-exact": nn.Upsample(scale_factor=2, mode="nearest-exact"),
    "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
    "bicubic": nn.Upsample(scale_factor=1.5, mode="bicubic"),
    "area": nn.Upsample(size=(2, 3), mode="area"),
    "linear": lambda x: nn.Upsample(scale_factor=2, mode="linear")(x[0]),
    "trilinear": lambda x: nn.Upsample(scale_factor=2, mode="trilinear")(x[None]),
    "antialiased": lambda x: F.interpolate(x, (2, 3), mode="bilinear", antialias=True),
    "ZeroPad2d": nn.ZeroPad2d(1),
    "ReflectionPad2d": nn.ReflectionPad2d(1),
}


@pytest.mark.parametrize("name", RESAMPLING)
def test_resampling_follows_its_input_and_obeys_a_list(converted: Converter, name: str) -> None:
    run = RESAMPLING[name]
    antialiased = name == "antialiased"  # has no kernel for bfloat16 on a CPU
    full, lowered = run(IMAGES), run(IMAGES.bfloat16().float() if antialiased else IMAGES.bfloat16())
    hmp.convert()
    assert_same(run(IMAGES), full)
    assert_same(run(IMAGES.bfloat16()), lowered)
    # Pixels are only moved, and the functions behind Fold have names of their own.
    listed = {
        "Fold": "col2im",
        "Unfold": "im2col",
        "PixelShuffle": "pixel_shuffle",
        "PixelUnshuffle": "pixel_unshuffle",
    }
    converted(bf16=["interpolate", "pad", "adaptive_avg_pool2d", *({listed[name]} if name in listed else ())])
    assert_same(run(IMAGES), full if antialiased else lowered)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_sampling_on_a_grid_runs_in_float32(converted: Converter, mode: str) -> None:
    def run(image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(image, grid, mode=mode, align_corners=False)

    full, of_lowered = run(IMAGES, GRID), run(IMAGES.bfloat16().float(), GRID)
    hmp.convert()
    assert_same(run(IMAGES, GRID), full)
    assert_same(run(IMAGES.bfloat16(), GRID), of_lowered)
    converted(bf16=["grid_sample"])
    assert_same(run(IMAGES, GRID), full)


def test_bilinear_goes_to_the_widest_input(converted: Converter) -> None:
    module, x, y = nn.Bilinear(3, 4, 5), torch.randn(2, 3), torch.randn(2, 4)
    expected, lowered = trained(module, x.bfloat16().float(), y), by_hand(module, x, y)
    hmp.convert()
    assert_same(trained(module, x.bfloat16(), y), expected)
    converted(bf16=["bilinear"])
    assert_same(trained(module, x, y), lowered)


def test_a_decorator_of_constructors_and_other_methods_does_not_make_these_constructors(converted: Converter) -> None:
    def decorated(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if isinstance(args[0], nn.Module) and function.__name__ == "__init__":
                args[0].after = nn.Parameter(torch.mm(torch.eye(4), torch.eye(4)))
            return result

        return wrapper

    class Module(nn.Module):
        @decorated
        def __init__(self) -> None:
            super().__init__()

        @decorated
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(x, x)

    def tracing(*_: Any) -> Any:
        return tracing

    converted(bf16=["mm"])
    module = Module()
    assert module.after.dtype is torch.float32
    assert module(torch.eye(4)).dtype is torch.bfloat16
    before = sys.gettrace()
    sys.settrace(tracing)
    try:
        traced = module(torch.eye(4)).dtype
    finally:
        sys.settrace(before)
    assert traced is torch.bfloat16
