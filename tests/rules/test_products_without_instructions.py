"""Products where the processor has no instruction for their precision: float32 sums of the rounded operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import _core, hmp
from helpers.each import each
from helpers.lists import Converter

Call = Callable[..., torch.Tensor]


pytestmark = pytest.mark.usefixtures("without_instructions")


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


HEADS = (2, 4, 40, 32)
#: Calls, and the sizes of their tensors: large enough that no call is left to torch for its size.
CALLS: dict[str, tuple[Call, Sequence[tuple[int, ...]]]] = {
    "linear": (F.linear, [(65, 97), (130, 97), (130,)]),
    "linear, without bias": (F.linear, [(4, 30, 96), (128, 96)]),
    "linear, few rows": (F.linear, [(7, 64), (8, 64)]),
    "linear, one number for all": (F.linear, [(64, 96), (128, 96), (1,)]),
    "mm": (torch.mm, [(64, 96), (96, 160)]),
    "@": (lambda x, w: x @ w.t(), [(4, 16, 96), (160, 96)]),
    "addmm": (torch.addmm, [(160,), (64, 96), (96, 160)]),
    "addmm, scaled": (lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2.0), [(64, 160), (64, 96), (96, 160)]),
    "bmm": (torch.bmm, [(8, 64, 32), (8, 32, 48)]),
    "matmul": (torch.matmul, [(2, 8, 64, 32), (1, 8, 32, 48)]),
    "matmul of a vector": (torch.matmul, [(120, 120), (120,)]),
    "baddbmm": (lambda b, x, w: torch.baddbmm(b, x, w, alpha=2.0), [(8, 64, 48), (8, 64, 32), (8, 32, 48)]),
    "einsum": (lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k), [HEADS, HEADS]),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding="same"), [(4, 16, 200), (32, 16, 3)]),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, 2, 1), [(4, 16, 20, 20), (32, 16, 3, 3), (32,)]),
    "conv2d, in groups": (lambda x, w: F.conv2d(x, w, groups=4), [(4, 16, 20, 20), (32, 4, 3, 3)]),
    "conv2d of one image": (F.conv2d, [(16, 30, 30), (32, 16, 3, 3)]),
    "conv3d": (lambda x, w, b: F.conv3d(x, w, b, padding=1), [(2, 8, 6, 12, 12), (16, 8, 3, 3, 3), (16,)]),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, output_padding=1),
        [(4, 16, 20, 20), (16, 32, 3, 3), (32,)],
    ),
    "attention": (_causal, [HEADS] * 3),
}


def exact(call: Call, values: list[torch.Tensor], dtype: torch.dtype, gradient: torch.Tensor) -> list[torch.Tensor]:
    """The call with rounded operands in float64, and their gradients."""
    with hmp.disable_casts(), torch.enable_grad():
        rounded = [one.detach().to(dtype).double().requires_grad_() for one in values]
        result = call(*rounded)
        return [result.detach(), *torch.autograd.grad(result, rounded, gradient.to(dtype).double())]


def assert_near(made: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    """Asserts a few roundings: attention's gradients are products of rounded products."""
    torch.testing.assert_close(
        made.double(), wanted, rtol=2 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps * wanted.abs().max().item()
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each("operands", ["float32", "lower", "lower, by preset half"])
@each("name", CALLS)
def test_results_and_gradients_are_those_of_rounded_operands(dtype: torch.dtype, name: str, operands: str) -> None:
    call, sizes = CALLS[name]
    values = [torch.randn(one) for one in sizes]
    given = [(one.clone() if operands == "float32" else one.to(dtype)).requires_grad_() for one in values]
    with hmp.disable_casts():
        gradient = torch.randn_like(call(*values))
    wanted = exact(call, values, dtype, gradient)
    if operands == "lower, by preset half":
        hmp.convert(preset="half")
    else:
        hmp.convert(preset="recommended", within="everywhere", dtype=dtype)
    made = call(*given)
    assert made.dtype is dtype or name == "matmul of a vector"
    gradients = torch.autograd.grad(made, given, gradient.to(made.dtype))
    assert [one.dtype for one in gradients] == [one.dtype for one in given]
    for one, other in zip([made.detach(), *gradients], wanted, strict=True):
        assert_near(one, other, dtype)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            untracked = call(*given)
        assert_near(untracked, wanted[0], dtype)


@pytest.mark.parametrize("has_instructions", [False, True])
@each("name", ["linear", "linear, few rows", "@", "addmm", "bmm", "conv2d"])
def test_with_and_without_autograd_the_bits_are_the_same(
    name: str, has_instructions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So both runs of a reentrant checkpoint choose the same experts.
    if has_instructions:
        monkeypatch.undo()
    call, sizes = CALLS[name]
    values = [torch.randn(one).requires_grad_() for one in sizes]
    hmp.convert(preset="recommended", within="everywhere")
    with torch.no_grad():
        untracked = call(*values)
    assert torch.equal(call(*values).detach(), untracked)


@each("name", ["linear", "bmm", "conv2d", "conv_transpose2d", "attention", "einsum"])
def test_a_gradient_can_be_differentiated(name: str) -> None:
    call, sizes = CALLS[name]
    values = [torch.randn(one) for one in sizes]

    def second(tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        first = torch.autograd.grad(call(*tensors).float().square().mean(), tensors[:2], create_graph=True)
        return torch.autograd.grad(sum(one.double().square().sum() for one in first), tensors[:2])

    with hmp.disable_casts(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        wanted = second([one.bfloat16().double().requires_grad_() for one in values])
        hmp.convert(preset="recommended", within="everywhere")
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        made = second([one.requires_grad_() for one in values])
    for one, other in zip(made, wanted, strict=True):
        assert (one.double() - other).norm() < 0.05 * other.norm()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_autograd_a_layer_is_computed_by_the_kernels(mode: Callable[[], Any]) -> None:
    layer = nn.Linear(96, 128)
    hmp.convert(preset="recommended")
    hmp.reset_report()
    with mode():
        layer(torch.randn(4, 96))
        layer.bfloat16()(torch.randn(4, 96).bfloat16())
    assert hmp.report(show=False).weights.products == (0 if _core.kernels_path() == "scalar" else 2)
    hmp.reset_report()


def test_transforms_take_the_same_products() -> None:
    weight, x = torch.randn(128, 96), torch.randn(16, 8, 96)
    hmp.convert(preset="recommended", within="everywhere")
    expected = F.linear(x, weight)
    made = torch.func.vmap(lambda one: F.linear(one, weight))(x)
    torch.testing.assert_close(made, expected)
    gradient = torch.func.grad(lambda w: F.linear(x, w).float().square().sum())(weight)
    leaf = weight.clone().requires_grad_()
    F.linear(x, leaf).float().square().sum().backward()
    torch.testing.assert_close(gradient, leaf.grad, rtol=2e-2, atol=2e-2 * gradient.abs().max().item())


@each("freezing", [False, True])
@each("name", ["linear", "addmm", "bmm", "conv2d", "attention"])
def test_compiled_code_takes_the_same_products(name: str, freezing: bool) -> None:
    call, sizes = CALLS[name]
    values = [torch.randn(one) for one in sizes]  # with digits that a rounding takes away
    with hmp.disable_casts():
        gradient = torch.randn_like(call(*values))
    wanted = exact(call, values, torch.bfloat16, gradient)
    hmp.convert(preset="recommended", within="everywhere")
    torch._dynamo.reset()
    compiled = torch.compile(call)
    with torch.no_grad(), torch._inductor.config.patch(freezing=freezing):
        made = compiled(*values)
        assert made.dtype is torch.bfloat16
        assert_near(made, wanted[0], torch.bfloat16)
    if freezing:
        return
    given = [one.clone().requires_grad_() for one in values]
    tracked = compiled(*given)
    gradients = torch.autograd.grad(tracked, given, gradient.to(tracked.dtype))
    for one, other in zip([tracked.detach(), *gradients], wanted, strict=True):
        assert_near(one, other, torch.bfloat16)


def test_compiled_code_calls_the_package_s_operators_and_no_longer_after_restore() -> None:
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    layer, x = nn.Linear(96, 128), torch.randn(64, 96)
    before = config.post_grad_custom_post_pass
    hmp.convert()
    torch._dynamo.reset()
    with torch.no_grad():
        _, codes = run_and_get_code(torch.compile(layer), x)
        assert "torch.ops.habana_mp.addmm" in codes[0]
        hmp.restore()
        torch._dynamo.reset()
        with torch.autocast("cpu", torch.bfloat16):
            _, codes = run_and_get_code(torch.compile(layer), x)
        assert "torch.ops.habana_mp" not in codes[0]
    assert config.post_grad_custom_post_pass is before


def test_the_operators_that_compiled_code_calls_add_no_rows(counted: None) -> None:
    model, x = nn.Sequential(nn.Linear(96, 128), nn.ReLU()), torch.randn(64, 96)
    hmp.convert(preset="recommended", rules={"* @ 1": "fp32"}, report="modules")
    torch._dynamo.reset()
    compiled = torch.compile(model)
    compiled(x).backward(torch.ones(64, 128))
    hmp.reset_report()
    compiled(x).backward(torch.ones(64, 128))
    assert hmp.report(show=False).rows == ()


def test_a_mask_of_compiled_attention_is_taken() -> None:
    q, mask = torch.randn(2, 4, 40, 32), torch.ones(40, 40, dtype=torch.bool).tril()
    hmp.convert(preset="recommended", within="everywhere")
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, mask: F.scaled_dot_product_attention(q, q, q, attn_mask=mask))
    for given in (mask, torch.zeros(40, 40).masked_fill(~mask, -1e9), torch.zeros(40, 40).bfloat16()):
        expected = F.scaled_dot_product_attention(q, q, q, attn_mask=given)
        torch.testing.assert_close(compiled(q, given), expected, atol=0.02, rtol=0.02)


def test_what_torch_refuses_is_refused_and_keywords_change_nothing() -> None:
    x, w, b = torch.randn(64, 96).bfloat16(), torch.randn(96, 160).bfloat16(), torch.randn(160).bfloat16()
    for one in (x, w, b):
        one.requires_grad_()
    hmp.convert(preset="recommended", within="everywhere")
    refused: list[Callable[[], object]] = [
        lambda: torch.ones(64, 96, dtype=torch.int64) @ w,
        lambda: F.linear(torch.ones(64, 96, dtype=torch.bool), w.t()),
        lambda: torch.mm(x[None], w),
        lambda: torch.bmm(x, w),
        lambda: torch.bmm(x.expand(1, 64, 96), w.expand(4, 96, 160)),
        lambda: torch.addmm(b, x[None], w),
        lambda: x[:, :1] @ w,  # a matrix of one column is not expanded
        lambda: F.linear(x[:, :1], w.t()),
        lambda: torch.mv(w, b[:1]),
        lambda: torch.bmm(x.expand(2, 3, 64, 96).detach(), w.expand(2, 3, 96, 160).detach()),
        lambda: F.conv1d(torch.randn(4, 16, 20, 20).bfloat16(), torch.randn(32, 16, 3, 3).bfloat16().requires_grad_()),
    ]
    for call in refused:
        with pytest.raises(RuntimeError):
            call()
    assert torch.equal(torch.mm(x, mat2=w), torch.mm(input=x, mat2=w))
    assert torch.mm(x, mat2=w).dtype is torch.addmm(b, mat1=x, mat2=w).dtype is torch.bfloat16


@each("call", [torch.mv, lambda w, x: torch.addmv(x, w, x), torch.matmul])
def test_the_product_with_a_vector_is_no_view(call: Call) -> None:
    weight, x = torch.randn(120, 120).bfloat16().requires_grad_(), torch.randn(120).bfloat16()
    hmp.convert(preset="half")
    assert not call(weight, x)._is_view()


def test_an_operand_is_saved_if_the_other_one_needs_a_gradient() -> None:
    saved: list[torch.Tensor] = []
    frozen, x = torch.randn(160, 96), torch.randn(64, 96).requires_grad_()
    hmp.convert(preset="recommended", within="everywhere")
    with torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one) or one, lambda one: one):
        F.linear(x, frozen)
    assert [tuple(one.shape) for one in saved] == [(160, 96)]


LAYERS: dict[str, Callable[..., nn.Module]] = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}


@each("name", LAYERS)
def test_a_recurrent_layer_rounds_its_input_and_weights_and_not_its_state(name: str, converted: Converter) -> None:
    layer, x = LAYERS[name](48, 64, 2), torch.randn(20, 3, 48).requires_grad_()
    double = LAYERS[name](48, 64, 2).double()
    double.load_state_dict({key: value.bfloat16().double() for key, value in layer.state_dict().items()})
    rounded = x.detach().bfloat16().double().requires_grad_()
    wanted = double(rounded)[0]
    wanted.float().square().mean().backward()
    converted(preset="torch-cpu")
    made = layer(x)[0]
    made.float().square().mean().backward()
    assert_near(made.detach(), wanted.detach(), torch.bfloat16)
    assert_near(x.grad, rounded.grad, torch.bfloat16)
    for one, other in zip(layer.parameters(), double.parameters(), strict=True):
        assert_near(one.grad, other.grad, torch.bfloat16)
    with torch.no_grad():
        assert_near(layer(x)[0], wanted.detach(), torch.bfloat16)
