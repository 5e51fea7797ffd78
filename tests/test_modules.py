"""Modules of torch.nn and what works on them: values are those of casting by hand, weights and buffers stay exact."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import Converter
from torch import nn
from torch.ao import quantization
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.optim import lr_scheduler, swa_utils
from torch.utils._pytree import tree_leaves, tree_map

from habana_mp import HmpWarning, _state, hmp

BF16, FP32 = torch.bfloat16, torch.float32


@pytest.fixture(scope="module", autouse=True)
def one_thread_and_quiet() -> Iterator[None]:
    """Small tensors need one thread; torch warns of its older functions."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", HmpWarning)
        yield
    torch.set_num_threads(threads)


def seeded(call: Callable[[], Any]) -> Any:
    """The result of ``call`` with the same random numbers each time."""
    torch.manual_seed(0)
    return call()


def tensors(value: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]


def lower(value: Any) -> Any:
    return tree_map(lambda one: one.bfloat16() if isinstance(one, torch.Tensor) and one.dtype is FP32 else one, value)


def assert_same(result: Any, expected: Any) -> None:
    got, wanted = tensors(result), tensors(expected)
    assert len(got) == len(wanted) > 0
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype is other.dtype
        assert torch.equal(one, other)


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


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("state", [False, True], ids=["no state", "state"])
def test_a_listed_recurrent_module_trains_as_by_hand(converted: Converter, name: str, state: bool) -> None:
    module, x, first = recurrent(name)
    inputs = (x, first) if state else (x,)
    expected = by_hand(module, *inputs)
    converted(bf16=RECURRENT_NAMES)
    assert_same(trained(module, *inputs), expected)
    assert_same(trained(module, x.bfloat16(), *inputs[1:]), expected)


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_recurrent_module_in_no_list_follows_its_input(converted: Converter, name: str, training: bool) -> None:
    module, x, first = recurrent(name)
    module.train(training)
    full, lowered = trained(module, x, first), by_hand(module, x, first)
    converted(bf16=["mm"])
    assert_same(trained(module, x, first), full)
    assert_same(trained(module, x.bfloat16(), first), lowered)


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
def test_a_whole_transformer_trains(norm_first: bool) -> None:
    model = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, norm_first=norm_first, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    inputs, keywords = (torch.randn(3, 5, 16), torch.randn(3, 4, 16)), {"tgt_mask": mask, "tgt_is_causal": True}
    expected = trained(model, *inputs, **keywords)
    hmp.convert()
    result, gradients = trained(model, *inputs, **keywords)
    assert_near((result, gradients), expected)
    assert {gradient.dtype for gradient in tensors(gradients)} == {FP32}


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
    lowered = by_hand(module, INDICES, **lower(keywords))
    hmp.convert()
    assert_same(trained(module, INDICES, **keywords), expected)
    assert_same(trained(module, INDICES, **lower(keywords)), trained(module, INDICES, **raised(lower(keywords))))
    converted(bf16=["embedding_bag"])
    assert_same(trained(module, INDICES, **keywords), lowered)


def raised(value: Any) -> Any:
    return tree_map(lambda one: one.float(), value)


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


# ---- weights made of weights ---------------------------------------------------------------------------------------


def averaged(**options: Any) -> list[torch.Tensor]:
    model = nn.Linear(8, 8)
    average = swa_utils.AveragedModel(model, **options)
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape))
        average.update_parameters(model)
    return list(average.module.parameters())


def fused_convolution() -> list[torch.Tensor]:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    with torch.no_grad():
        for one in (*model[1].parameters(), *model[1].buffers()):
            if one.is_floating_point():
                one.uniform_(0.5, 2)
    fused = torch.nn.utils.fuse_conv_bn_eval(*model)
    return [*fused.parameters(), *quantization.fuse_modules(model, [["0", "1"]])[0].parameters()]


def fused_linear() -> list[torch.Tensor]:
    linear, norm = nn.Linear(3, 4).eval(), nn.BatchNorm1d(4).eval()
    with torch.no_grad():
        for one in (*norm.parameters(), norm.running_mean, norm.running_var):
            one.uniform_(0.5, 2)
    return list(torch.nn.utils.fuse_linear_bn_eval(linear, norm).parameters())


def pruned(method: Callable[[nn.Module], Any]) -> list[torch.Tensor]:
    module = nn.Linear(8, 8)
    method(module)
    module(torch.randn(2, 8))
    kept = [module.weight_mask.clone(), module.weight_orig.detach().clone()]
    prune.remove(module, "weight")
    return [*kept, module.weight]


class Twice(nn.Module):
    """A parametrization that would be lowered."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def right_inverse(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5


def parametrized() -> list[torch.Tensor]:
    module = nn.Linear(8, 8)
    parametrize.register_parametrization(module, "weight", Twice())
    module.weight = torch.randn(8, 8)
    made = [module.parametrizations.weight.original.detach().clone()]
    parametrize.remove_parametrizations(module, "weight")
    return [*made, module.weight]


def normalised(method: Callable[[nn.Module], nn.Module], remove: Callable[[nn.Module, str], Any]) -> list[torch.Tensor]:
    module = method(nn.Linear(8, 8))
    for _ in range(3):
        module(torch.randn(3, 8))
    state = [value.clone() for value in module.state_dict().values()]
    remove(module, "weight")
    return [*state, module.weight]


def assigned_orthogonal() -> list[torch.Tensor]:
    module = parametrizations.orthogonal(nn.Linear(8, 8))
    module.weight = torch.linalg.qr(torch.randn(8, 8))[0]
    return list(module.state_dict().values())


def scheduled(make: Callable[[torch.optim.Optimizer], Any]) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=torch.tensor(1e-3))
    scheduler = make(optimizer)
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    return [optimizer.param_groups[0]["lr"]]


def clipped(**options: Any) -> list[torch.Tensor]:
    parameters = list(nn.Linear(8, 8).parameters())
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape)
    total = torch.nn.utils.clip_grad_norm_(parameters, 1.0, **options)
    torch.nn.utils.clip_grad_value_(parameters, 0.1)
    return [total, *(parameter.grad for parameter in parameters)]


def as_one_vector() -> list[torch.Tensor]:
    parameters = list(nn.Linear(8, 8).parameters())
    vector = nn.utils.parameters_to_vector(parameters)
    nn.utils.vector_to_parameters(vector.detach().neg(), parameters)
    return [vector, *parameters]


EXACT: dict[str, Callable[[], Any]] = {
    "average": averaged,
    "average by a function": lambda: averaged(avg_fn=swa_utils.get_ema_avg_fn(0.9)),
    "average of many": lambda: averaged(multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)),
    "fused convolution": fused_convolution,
    "fused linear": fused_linear,
    "pruned by size": lambda: pruned(lambda one: prune.l1_unstructured(one, "weight", 0.5)),
    "pruned by rows": lambda: pruned(lambda one: prune.ln_structured(one, "weight", 0.5, 2, 0)),
    "pruned by a mask": lambda: pruned(lambda one: prune.custom_from_mask(one, "weight", torch.eye(8))),
    "parametrized": parametrized,
    "weight norm": lambda: normalised(parametrizations.weight_norm, parametrize.remove_parametrizations),
    "spectral norm": lambda: normalised(parametrizations.spectral_norm, parametrize.remove_parametrizations),
    "orthogonal": lambda: normalised(parametrizations.orthogonal, parametrize.remove_parametrizations),
    "assigned orthogonal": assigned_orthogonal,
    "old weight norm": lambda: normalised(nn.utils.weight_norm, nn.utils.remove_weight_norm),
    "old spectral norm": lambda: normalised(nn.utils.spectral_norm, nn.utils.remove_spectral_norm),
    "exponential schedule": lambda: scheduled(lambda one: lr_scheduler.ExponentialLR(one, 0.999)),
    "linear schedule": lambda: scheduled(lambda one: lr_scheduler.LinearLR(one, 0.3)),
    "clipped": clipped,
    "clipped one by one": lambda: clipped(foreach=False, norm_type=1.0),
    "one vector": as_one_vector,
}


@pytest.mark.parametrize("name", EXACT)
def test_what_makes_weights_of_weights_is_exact(name: str) -> None:
    expected = seeded(EXACT[name])
    hmp.convert()
    assert_same(seeded(EXACT[name]), expected)


def test_the_functions_that_make_state_exist_in_this_torch() -> None:
    for name, functions in _state.FUNCTIONS.items():
        module = sys.modules[name]
        for one in functions:
            assert list(_state.functions_of(module, (one,))), f"{name}.{one}"


def test_functions_of_a_module_imported_later_keep_their_code_after_restore() -> None:
    script = (
        "import sys, torch\nfrom habana_mp import hmp\n"
        "assert 'torch.nn.utils.prune' not in sys.modules\n"
        "hmp.convert()\nimport torch.nn.utils.prune as prune\n"
        "code = prune.BasePruningMethod.remove.__code__\nhmp.restore()\n"
        "print(code is prune.BasePruningMethod.remove.__code__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_spectral_norm_can_be_compiled_whole() -> None:
    module = parametrizations.spectral_norm(nn.Linear(8, 8))
    plain, x = copy.deepcopy(module), torch.randn(3, 8)
    hmp.convert()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), plain(x))
    for one, other in zip(module.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other)
    torch._dynamo.reset()


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
