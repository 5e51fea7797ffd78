"""Together with what else transforms programs: torch.compile, export, trace, script, torch.func, copying, pickling.

Needs peft and transformers.
"""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as fwd
import torch.nn.functional as F
import transformers
from conftest import BACKENDS, Converter, assert_same, run_script
from peft import (
    IA3Config,
    LoraConfig,
    OFTConfig,
    PromptEncoderConfig,
    get_peft_model,
    get_peft_model_state_dict,
)
from torch import nn

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32
M = torch.linspace(0.1, 0.9, 16).reshape(4, 4)
N = M.t().contiguous() * 0.7
pytestmark = pytest.mark.usefixtures("compiled_anew")


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.LogSoftmax(-1))


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.relu(torch.mm(x, y)) + 1, -1)


def product_only(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, y)


# ---- torch.compile -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_compiled_after_convert_casts_as_the_plain_one(backend: str) -> None:
    hmp.convert()
    compiled = torch.compile(product_only, backend=backend, fullgraph=True)
    expected = product_only(M, N)
    result = compiled(M, N)
    assert result.dtype is BF16
    torch.testing.assert_close(result, expected)
    # Inductor keeps float32 between operations that it fuses.
    fused = torch.compile(chain, backend=backend, fullgraph=True)(M, N)
    torch.testing.assert_close(fused, chain(M, N), rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_compiled_before_convert_obeys_and_stops_obeying(backend: str) -> None:
    compiled = torch.compile(product_only, backend=backend, fullgraph=True)
    assert compiled(M, N).dtype is FP32
    for _ in range(2):
        hmp.convert()
        assert compiled(M, N).dtype is BF16
        hmp.restore()
        assert compiled(M, N).dtype is FP32


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_function_follows_a_new_configuration(converted: Converter, backend: str) -> None:
    compiled = torch.compile(lambda x: (torch.exp(x), torch.sin(x)), backend=backend, fullgraph=True)
    converted(bf16=["exp"])
    assert [one.dtype for one in compiled(M)] == [BF16, FP32]
    converted(bf16=["sin"])
    assert [one.dtype for one in compiled(M)] == [FP32, BF16]
    hmp.convert(dtype=torch.float16)
    assert torch.compile(product_only, backend=backend)(M, N).dtype is torch.float16


@pytest.mark.parametrize("backend", BACKENDS)
def test_disable_casts_works_around_and_inside_of_a_compiled_function(backend: str) -> None:
    def inside(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with hmp.disable_casts():
            first = torch.mm(x, y)
        return first, torch.mm(x, y)

    hmp.convert()
    compiled = torch.compile(product_only, backend=backend)
    assert compiled(M, N).dtype is BF16
    with hmp.disable_casts():
        assert compiled(M, N).dtype is FP32
    assert compiled(M, N).dtype is BF16
    assert [one.dtype for one in torch.compile(inside, backend=backend)(M, N)] == [FP32, BF16]


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_disabled_is_obeyed_in_a_compiled_function(backend: str) -> None:
    def inside(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", enabled=False):
            first = torch.mm(x, y)
        return first, torch.mm(x, y)

    hmp.convert()
    assert [one.dtype for one in torch.compile(inside, backend=backend)(M, N)] == [FP32, BF16]
    compiled = torch.compile(product_only, backend=backend)
    with torch.autocast("cpu", enabled=False):
        assert compiled(M, N).dtype is FP32
    assert compiled(M, N).dtype is BF16


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_model_trains_like_the_plain_one(backend: str) -> None:
    plain, model = small(), small()
    hmp.convert()
    labels = torch.tensor([0, 1, 2, 0])
    for module, call in ((plain, plain), (model, torch.compile(model, backend=backend))):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        for _ in range(2):
            optimizer.zero_grad()
            F.nll_loss(call(M), labels).backward()
            optimizer.step()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert other.dtype is FP32
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("name", ["normalize", "softmin"])
def test_a_python_function_of_torch_can_be_compiled_whole(converted: Converter, name: str) -> None:
    function: Callable[..., torch.Tensor] = getattr(F, name)
    converted(bf16=[name])
    compiled = torch.compile(lambda x: function(x, dim=-1), backend="eager", fullgraph=True)
    assert compiled(M).dtype is BF16


def test_a_wrapped_function_can_be_compiled() -> None:
    wrapped = hmp.op_wrap(lambda x, y: x + y, to="bf16")
    hmp.convert()
    assert torch.compile(lambda x: wrapped(x, y=x), backend="eager")(M).dtype is BF16


# ---- trace, script, export -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [True, False])
def test_a_trace_contains_the_casts(grad: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    hmp.convert()
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(model, M)
    expected = model(N)
    hmp.restore()
    result = traced(N)
    assert result.dtype is BF16
    assert torch.equal(result, expected)


def test_a_trace_of_large_tensors_contains_the_casts() -> None:
    model = nn.Linear(300, 300)
    example = torch.randn(300, 300)
    hmp.convert()
    with torch.no_grad():
        traced = torch.jit.trace(model, example)
        other = torch.randn(300, 300)
        expected = model(other)
    hmp.restore()
    assert torch.equal(traced(other), expected)


def test_scripting_works_before_and_after_convert(converted: Converter) -> None:
    before = torch.jit.script(small())
    expected = before(M)
    converted(bf16=["mm", "normalize", "softmin", "linear", "relu"])
    after = torch.jit.script(small())
    assert after(M).shape == before(M).shape == expected.shape
    assert torch.jit.script(F.normalize)(M).shape == (4, 4)
    hmp.restore()
    torch.testing.assert_close(after(M), expected)


def test_an_exported_program_contains_the_casts() -> None:
    model = small()
    hmp.convert()
    program = torch.export.export(model, (M,))
    expected = model(N)
    hmp.restore()
    result = program.module()(N)
    assert torch.equal(result, expected)
    assert any("bfloat16" in str(node.args) + str(node.kwargs) for node in program.graph.nodes)


def test_a_symbolic_trace_is_not_disturbed() -> None:
    hmp.convert()
    graph = torch.fx.symbolic_trace(small())
    assert torch.equal(graph(M), small()(M))


def test_make_fx_records_the_casts() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    hmp.convert()
    graph = make_fx(product_only)(M, N)
    hmp.restore()
    assert graph(M, N).dtype is BF16


def test_a_dispatch_mode_sees_the_casts(converted: Converter) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    converted(bf16=["mm"])
    with Watching():
        torch.mm(M, N)
    assert seen == ["aten._to_copy.default", "aten._to_copy.default", "aten.mm.default"]


# ---- torch.func and forward mode -----------------------------------------------------------------------------------


def test_vmap_equals_a_loop() -> None:
    batch = torch.randn(3, 4, 4)
    hmp.convert()
    for function in (
        lambda x: torch.mm(x, N),
        lambda x: F.linear(x, N),
        lambda x: x @ N * 2,
        lambda x: torch.cat([x, N]),
    ):
        expected = torch.stack([function(one) for one in batch])
        result = torch.func.vmap(function)(batch)
        assert result.dtype is expected.dtype
        torch.testing.assert_close(result, expected)


def loss(w: torch.Tensor) -> torch.Tensor:
    return torch.mm(M, w).float().pow(2).sum()


def loss_by_hand(w: torch.Tensor) -> torch.Tensor:
    return torch.mm(M.bfloat16(), w.bfloat16()).float().pow(2).sum()


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.func.grad(f)(N),
        lambda f: torch.func.grad_and_value(f)(N),
        lambda f: torch.func.vmap(torch.func.grad(f))(torch.stack([N, M])),
        lambda f: torch.func.vjp(f, N)[1](torch.tensor(1.0)),
        lambda f: torch.func.jvp(f, (N,), (M,)),
        lambda f: torch.func.jacrev(f)(N),
        lambda f: torch.func.jacfwd(f)(N),
        lambda f: torch.func.linearize(f, N)[1](M),
        lambda f: torch.func.hessian(f)(N[:, :2].contiguous()),
        lambda f: torch.func.grad(lambda x: torch.func.grad(f)(x).sum())(N),
        lambda f: torch.autograd.functional.jacobian(f, N),
    ],
)
def test_transforms_go_through_the_casts_as_through_those_by_hand(
    converted: Converter, transform: Callable[[Any], Any]
) -> None:
    expected = transform(loss_by_hand)
    converted(bf16=["mm"])
    torch.testing.assert_close(transform(loss), expected)


FUNCTIONALIZED = """
import torch
from habana_mp import hmp
x, y = torch.linspace(0.1, 0.9, 16).reshape(4, 4), torch.linspace(0.9, 0.1, 16).reshape(4, 4)
hmp.convert()
for grad in (False, True):
    for function in (lambda x: torch.mm(x, y), torch.relu, lambda x: torch.cat([x.bfloat16(), y]), torch.log):
        for _ in range(3):
            with torch.set_grad_enabled(grad):
                assert torch.equal(torch.func.functionalize(function)(x), function(x))
print("same")
"""


def test_functionalization_goes_through_the_casts() -> None:
    # In a process of its own: what is wrapped has no memory, and reading it ends the process.
    done = run_script(FUNCTIONALIZED)
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr


def test_forward_mode_gradients_go_through_the_casts(converted: Converter) -> None:
    tangent = torch.randn(4, 4)
    expected = torch.mm(M.bfloat16(), tangent.bfloat16())
    converted(bf16=["mm"])
    for grad in (True, False):
        with torch.set_grad_enabled(grad), fwd.dual_level():
            out = fwd.unpack_dual(torch.mm(M, fwd.make_dual(N, tangent)))
            assert out.tangent is not None
            assert torch.equal(out.tangent, expected)


def test_second_gradients_go_through_the_casts(converted: Converter) -> None:
    def second(f: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        w = N.clone().requires_grad_()
        (first,) = torch.autograd.grad(f(w), w, create_graph=True)
        return torch.autograd.grad(first.sum(), w)[0]

    expected = second(loss_by_hand)
    converted(bf16=["mm"])
    assert torch.equal(second(loss), expected)


def test_checkpointing_recomputes_with_the_same_casts() -> None:
    from torch.utils.checkpoint import checkpoint

    def gradients(call: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        model = small()
        call(model, M.clone().requires_grad_()).sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    hmp.convert()
    expected = gradients(lambda model, x: model(x))
    for reentrant in (True, False):
        for one, other in zip(gradients(functools.partial(checkpoint, use_reentrant=reentrant)), expected, strict=True):
            assert torch.equal(one, other)


def test_inference_mode_works() -> None:
    model = small()
    hmp.convert()
    expected = model(M)
    with torch.inference_mode():
        result = model(M)
        assert torch.mm(M, N).is_inference()
    assert torch.equal(result, expected)


def test_torch_autocast_beside_ours_is_warned_about_once_and_has_the_last_word(converted: Converter) -> None:
    converted(bf16=["exp"], fp32=["mm"])

    @torch.autocast("cpu", dtype=BF16)
    def under_autocast() -> list[torch.dtype]:
        small()(M).sum().backward()
        return [torch.mm(M, N).dtype, torch.exp(M).dtype]

    with pytest.warns(hmp.HmpWarning, match="autocast acts after the lists") as warned:
        dtypes = under_autocast()
    assert dtypes == [BF16, BF16]
    assert [Path(one.filename).name for one in warned] == [Path(__file__).name]
    with torch.autocast("cpu", dtype=BF16):
        assert torch.mm(M, N).dtype is BF16
    assert torch.mm(M, N).dtype is FP32
    with torch.autocast("cpu", dtype=BF16), pytest.warns(hmp.HmpWarning, match="autocast acts after the lists"):
        hmp.convert()


@pytest.mark.filterwarnings("error::habana_mp.HmpWarning")
def test_an_autocast_warning_that_is_an_error_leaves_autocast_off() -> None:
    hmp.convert()
    with pytest.raises(hmp.HmpWarning), torch.autocast("cpu", dtype=BF16):
        pytest.fail("was entered")
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_that_disables_is_not_warned_about() -> None:
    hmp.convert()
    with torch.autocast("cpu", enabled=False), hmp.disable_casts():
        assert torch.mm(M, N).dtype is FP32


def test_a_function_mode_and_a_subclass_see_one_call(converted: Converter) -> None:
    from torch.overrides import TorchFunctionMode

    seen = []

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    converted(bf16=["mm"])
    with Watching():
        assert torch.mm(M, N).dtype is BF16
    assert seen.count(torch.mm) == 1


# ---- copying and pickling ------------------------------------------------------------------------------------------


class Holding(nn.Module):
    """Keeps functions of torch as models do."""

    activations: ClassVar[dict[str, Any]] = {"gelu": F.gelu, "relu": torch.relu}

    def __init__(self, name: str = "gelu") -> None:
        super().__init__()
        self.activation = self.activations[name]
        self.also = F.relu
        self.norm = F.normalize
        self.dense = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.also(self.activation(self.dense(x))))


def test_a_model_that_keeps_functions_obeys(converted: Converter) -> None:
    model = Holding()
    converted(bf16=["gelu", "relu"], fp32=["normalize"])
    assert model.activation(M).dtype is BF16
    assert model.also(M).dtype is BF16
    assert model(M).dtype is FP32


def test_a_model_that_keeps_functions_can_be_copied_and_pickled(converted: Converter) -> None:
    model = Holding("relu")
    expected = model(M)
    converted(bf16=["linear", "relu", "normalize"])
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    text = pickle.dumps(model)
    lowered = model(M)
    assert lowered.dtype is BF16
    for one in copies:
        assert one.also is F.relu
        assert torch.equal(one(M), lowered)
        assert all(p.dtype is FP32 for p in one.parameters())
    hmp.restore()
    for one in (*copies, pickle.loads(text)):
        assert torch.equal(one(M), expected)


def test_a_state_dict_saved_while_converted_is_float32(converted: Converter, tmp_path: Any) -> None:
    model = Holding()
    converted(bf16=["linear", "t", "relu"])
    model(M).sum().backward()
    torch.save(model.state_dict(), tmp_path / "state.pt")
    hmp.restore()
    assert {value.dtype for value in torch.load(tmp_path / "state.pt").values()} == {FP32}


# ---- blocks that protect themselves, and NumPy -----------------------------------------------------------------------

SQUARE = torch.linspace(-1, 1, 16).reshape(4, 4)


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_a_block_that_transformers_protects_is_not_cast(backend: str | None) -> None:
    generic = pytest.importorskip("transformers.utils.generic")
    maybe_autocast = getattr(generic, "maybe_autocast", None) or pytest.skip("transformers before 5 has no such block")

    def rotary(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with maybe_autocast(device_type=x.device.type, enabled=False):
            protected = x @ x
        with maybe_autocast(x.device.type, None, False):
            return protected + (x @ x), x @ x

    call = rotary if backend is None else torch.compile(rotary, backend=backend, fullgraph=True)
    hmp.convert()
    assert [one.dtype for one in call(SQUARE)] == [torch.float32] * 2
    with hmp.autocast("cpu"):
        assert [one.dtype for one in call(SQUARE)] == [torch.float32] * 2
    hmp.restore()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert [one.dtype for one in rotary(SQUARE)] == [torch.float32] * 2


def test_numpy_gets_float32_of_what_was_lowered() -> None:
    hmp.convert()
    with torch.no_grad():
        cost = SQUARE @ SQUARE
    assert cost.dtype is torch.bfloat16
    assert np.array_equal(np.asarray(cost), cost.float().numpy())
    assert np.array_equal(np.outer(cost, cost), np.outer(cost.float().numpy(), cost.float().numpy()))
    assert np.asarray(SQUARE.half()).dtype == np.float16
    assert np.array_equal(cost.numpy(), cost.float().numpy())
    assert np.array_equal(torch.Tensor.numpy(cost, force=True), cost.float().numpy())
    assert SQUARE.numpy().ctypes.data == SQUARE.data_ptr()
    recorded = SQUARE.clone().requires_grad_() @ SQUARE
    with pytest.raises(RuntimeError, match="requires grad"):
        recorded.numpy()
    assert recorded.numpy(force=True).dtype == np.float32
    for array in (np.asarray, torch.Tensor.numpy):
        with hmp.disable_casts(), pytest.raises(TypeError):
            array(cost)
    hmp.restore()
    with pytest.raises(TypeError):
        cost.numpy()
    hmp.restore()
    with pytest.raises(TypeError):
        np.asarray(cost)


@pytest.mark.parametrize("preset", ["hmp-default", "torch-cpu"])
@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(target_modules=["0"], use_dora=True, init_lora_weights=False),
        LoraConfig(target_modules=["0"], init_lora_weights=False),
        OFTConfig(r=0, oft_block_size=8, target_modules=["0"], init_weights=False),
        IA3Config(target_modules=["0"], feedforward_modules=[], init_ia3_weights=False),
    ],
    ids=["DoRA", "LoRA", "OFT", "IA3"],
)
def test_peft_merges_adapters_in_float32(config: Any, preset: str) -> None:
    def merged() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = get_peft_model(nn.Sequential(nn.Linear(32, 32)), config)
        model.merge_adapter()
        model.unmerge_adapter()
        back = model.base_model.model[0].base_layer.weight.detach().clone()
        return [back, model.merge_and_unload()[0].weight.detach()]

    expected = merged()
    hmp.convert(preset=preset)
    for one, other in zip(merged(), expected, strict=True):
        assert torch.equal(one, other)


def test_peft_combines_adapters_in_float32() -> None:
    def combined() -> list[torch.Tensor]:
        torch.manual_seed(0)
        config = LoraConfig(target_modules=["0"], init_lora_weights=False)
        model = get_peft_model(nn.Sequential(nn.Linear(32, 32)), config)
        model.add_adapter("other", config)
        model.add_weighted_adapter(["default", "other"], [0.3, 0.7], "both", combination_type="svd")
        return [weight.detach() for name, weight in model.named_parameters() if "both" in name]

    expected = combined()
    assert len(expected) == 2
    hmp.convert()
    for one, other in zip(combined(), expected, strict=True):
        assert torch.equal(one, other)


def test_peft_saves_prompts_in_float32() -> None:
    def saved() -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        base = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64))
        config = PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=4, encoder_hidden_size=16)
        found: dict[str, torch.Tensor] = get_peft_model_state_dict(get_peft_model(base, config))
        return found

    expected = saved()
    hmp.convert()
    found = saved()
    assert found.keys() == expected.keys() == {"prompt_embeddings"}
    for name, value in expected.items():
        assert_same(found[name], value)


@pytest.mark.parametrize("initialised", [True, "pissa", "olora", "orthogonal"])
def test_peft_adds_adapters_in_float32(initialised: Any) -> None:
    def added() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = get_peft_model(nn.Sequential(nn.Linear(32, 32)), LoraConfig(target_modules=["0"]))
        model.add_adapter("other", LoraConfig(target_modules=["0"], init_lora_weights=initialised))
        return [weight.detach() for weight in model.parameters()]

    expected = added()
    hmp.convert()
    for one, other in zip(added(), expected, strict=True):
        assert torch.equal(one, other)


_SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 99}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (
            transformers.LlamaModel,
            transformers.LlamaConfig(
                **_SMALL,
                intermediate_size=32,
                rope_parameters={
                    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
                    **{"original_max_position_embeddings": 64, "rope_theta": 5e5},
                },
            ),
        ),
        (transformers.MusicgenForCausalLM, transformers.MusicgenDecoderConfig(**_SMALL, ffn_dim=32)),
        (
            transformers.Swinv2Model,
            transformers.Swinv2Config(
                image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4
            ),
        ),
    ],
    ids=["Llama", "Musicgen", "Swinv2"],
)
def test_a_model_of_transformers_is_loaded_as_without_casts(kind: Any, config: Any, tmp_path: Path) -> None:
    kind(config).save_pretrained(tmp_path)
    expected = kind.from_pretrained(tmp_path)
    hmp.convert()
    loaded = kind.from_pretrained(tmp_path)
    for pairs in (
        zip(loaded.parameters(), expected.parameters(), strict=True),
        zip(loaded.buffers(), expected.buffers(), strict=True),
    ):
        assert all(torch.equal(one, other) and one.dtype is other.dtype for one, other in pairs)


def test_embeddings_of_transformers_are_extended_as_without_casts() -> None:
    def extended() -> torch.Tensor:
        torch.manual_seed(0)
        model = transformers.LlamaModel(transformers.LlamaConfig(**_SMALL, intermediate_size=32))
        return model.resize_token_embeddings(110).weight.detach()

    expected = extended()
    hmp.convert()
    assert torch.equal(extended(), expected)
