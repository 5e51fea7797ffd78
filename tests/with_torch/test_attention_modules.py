"""Attention and transformers of torch.nn, in a list and in none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_same, tensors
from helpers.each import each
from helpers.lists import Converter
from helpers.modules import assert_near, lower, trained, trained_by_hand

BF16, FP32 = torch.bfloat16, torch.float32

pytestmark = pytest.mark.usefixtures("alike")


ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias of k and v": {"add_bias_kv": True},
    "zero attention": {"add_zero_attn": True},
    "own sizes of k and v": {"kdim": 5, "vdim": 7},
}
MASKS: dict[str, dict[str, type]] = {
    "no mask": {},
    "padding": {"key_padding_mask": bool},
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


@each("name", ATTENTION)
@each("masks", MASKS)
@each("need_weights", [False, True])
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
    assert_near(fused, ours[0])
    assert_near(mixed, expected[0])


# "bias of k and v" repeats its bias before it is cast, so that its gradient is summed in float32.
@each("name", [name for name in ATTENTION if name != "bias of k and v"])
def test_attention_whose_operations_are_all_listed_equals_casting_by_hand(converted: Converter, name: str) -> None:
    module, inputs, _ = attention(name, "no mask")
    expected = trained_by_hand(module, *inputs)
    converted(bf16=["linear", "bmm", "baddbmm", "softmax", "mul", "cat", "mean", "t"])
    assert_same(trained(module, *inputs), expected)


ACTIVATIONS = {"relu": "relu", "nn.GELU": nn.GELU()}


@each("activation", ACTIVATIONS)
@each("norm_first", [False, True])
@each("batch_first", [False, True])
@each("padded", [False, True])
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
    expected, hand = trained(model, *inputs, **keywords), trained_by_hand(model, *inputs, **lower(keywords))
    hmp.convert()
    ours = trained(model, *inputs, **keywords)
    for one, other, full in zip(tensors(ours), tensors(hand), tensors(expected), strict=True):
        assert (one - full).norm() <= 1.5 * (other - full).norm() + 0.01 * full.norm() + 0.01
    assert {gradient.dtype for gradient in tensors(ours[1])} == {FP32}


def heads(dtype: torch.dtype = torch.float32, count: int = 4) -> torch.Tensor:
    return torch.randn(2, count, 32, 16, dtype=dtype, requires_grad=True)


_ATTENTIONS: dict[str, Callable[[torch.dtype], object]] = {
    "plain": lambda _: F.scaled_dot_product_attention(heads(), heads(), heads()),
    "causal": lambda _: F.scaled_dot_product_attention(heads(), heads(), heads(), is_causal=True),
    "a float mask": lambda _: F.scaled_dot_product_attention(heads(), heads(), heads(), torch.zeros(32, 32)),
    "a lower query": lambda to: F.scaled_dot_product_attention(heads(to), heads(), heads()),
    "a lower cache": lambda to: F.scaled_dot_product_attention(heads(), heads(to), heads(to)),
    "lower, and a float mask": lambda to: F.scaled_dot_product_attention(
        heads(to), heads(to), heads(to), torch.zeros(32, 32)
    ),
    "groups": lambda _: F.scaled_dot_product_attention(heads(count=8), heads(), heads(), enable_gqa=True),
    "a module": lambda _: nn.MultiheadAttention(64, 4)(*[torch.randn(8, 2, 64)] * 3, need_weights=False),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("preset", ["hmp-default", "recommended", "torch-cpu", "torch-cuda"])
def test_no_cast_keeps_attention_from_its_fused_kernel(preset: str, dtype: torch.dtype) -> None:
    hmp.convert(preset=preset, dtype=dtype, within="everywhere")
    for name, attention in _ATTENTIONS.items():
        with torch.profiler.profile() as profiled:
            attention(dtype)
        kernels = {one.key for one in profiled.key_averages()}
        assert "aten::_scaled_dot_product_flash_attention_for_cpu" in kernels, name
