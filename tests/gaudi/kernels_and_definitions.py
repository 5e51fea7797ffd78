"""Compares each fused kernel of the stand-in with its definition in float64: results and gradients.

A script for one process: test_stand_in_formulas.py runs it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from habana_frameworks.torch.hpex import hmp, kernels
from habana_frameworks.torch.hpex.normalization import FusedRMSNorm
from torch import Tensor

#: The rounding of float32, with room for sums of some hundred terms.
TOLERANCE = 2e-5


def compare(name: str, made: Callable[..., Tensor], defined: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Compares results and gradients for the same random weights of the result. ``defined`` gets float64."""
    given = [one.clone().requires_grad_() for one in inputs]
    exact = [one.double().requires_grad_() for one in inputs]
    result, expected = made(*given), defined(*exact)
    assert result.dtype is inputs[0].dtype, (name, result.dtype)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    gradients = torch.autograd.grad(result, given, weights.to(result.dtype), allow_unused=True)
    expected_gradients = torch.autograd.grad(expected, exact, weights, allow_unused=True)
    for what, one, other in zip(
        ("result", *(f"gradient {number}" for number in range(len(inputs)))),
        (result, *gradients),
        (expected, *expected_gradients),
        strict=True,
    ):
        assert (one is None) == (other is None), (name, what)
        if one is None or other is None:
            continue
        scale = max(1.0, float(other.detach().abs().max()))
        error = float((one.detach().double() - other.detach()).abs().max()) / scale
        assert error < TOLERANCE, (name, what, error)


# ---- attention ------------------------------------------------------------------------------------------------------


def attention(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, added: Tensor | None) -> Tensor:
    """The definition, with one copy of keys and values for each head of the query."""
    times = query.shape[-3] // key.shape[-3]
    key, value = (one.repeat_interleave(times, -3) for one in (key, value))
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if added is not None:
        scores = scores + added
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
        none = ~allowed.any(-1, keepdim=True)
        return scores.masked_fill(none, 0).softmax(-1).masked_fill(none, 0) @ value
    return scores.softmax(-1) @ value


def check_attention() -> None:
    for heads, is_causal, kind in itertools.product((4, 2), (False, True), ("none", "bool", "row")):
        tokens = 7
        query, key, value = torch.randn(2, 4, tokens, 8), *(torch.randn(2, heads, tokens, 8) for _ in range(2))
        mask = {
            "none": None,
            "bool": torch.rand(2, 1, tokens, tokens) > 0.3,
            "row": torch.randn(2, 1, 1, tokens),
        }[kind]
        if kind == "bool" and mask is not None:
            mask |= torch.eye(tokens, dtype=torch.bool)
        lower = torch.ones(tokens, tokens).tril().bool()
        allowed = lower if is_causal else None
        if kind == "bool":
            allowed = mask if allowed is None else mask & allowed
        added = None if mask is None or kind == "bool" else mask.double()
        compare(
            f"FusedSDPA {heads} {is_causal} {kind}",
            lambda *x, mask=mask, causal=is_causal: kernels.FusedSDPA.apply(*x, mask, 0.0, causal, None, "fast", True),
            lambda *x, allowed=allowed, added=added: attention(*x, allowed, added),
            *(query, key, value),
        )


def check_valid_lengths_and_windows() -> None:
    tokens, lengths = 9, torch.tensor([4, 9, 0], dtype=torch.int32)
    inputs = [torch.randn(3, 2, tokens, 8) for _ in range(3)]
    position = torch.arange(tokens)
    lower = position <= position[:, None]
    for side, window in (("left", (-1, -1)), ("right", (-1, -1)), ("right", (2, -1))):
        valid = position < lengths[:, None] if side == "right" else position >= tokens - lengths[:, None]
        allowed = lower & valid[:, None, None]
        if window[0] >= 0:
            allowed = allowed & (position >= position[:, None] - window[0])
        compare(
            f"FusedSDPA {side} {window}",
            lambda *x, side=side, window=window: kernels.FusedSDPA.apply(
                *x, None, 0.0, True, None, "None", None, lengths, side, window_size=window
            ),
            lambda *x, allowed=allowed: attention(*x, allowed, None),
            *inputs,
        )
    after = (position >= position[:, None] - 1) & (position <= position[:, None] + 2)
    for apply in (kernels.FusedSDPA.apply, result_of_parts):
        compare(
            f"FusedSDPA window {apply.__name__}",
            lambda *x, apply=apply: apply(*x, window_size=(1, 2)),
            lambda *x: attention(*x, after, None),
            *inputs,
        )


def result_of_parts(*inputs: Tensor, **options: Any) -> Tensor:
    """Returns the result of the attention that returns its probabilities too."""
    result: Tensor = kernels.FusedSDPA.apply(*inputs, return_attn_probs=True, **options)[0]
    return result


def check_probabilities_and_sinks() -> None:
    query, key, value = (torch.randn(2, 4, 5, 8) for _ in range(3))
    sink = torch.randn(4)
    result, probabilities = kernels.FusedSDPA.apply(query, key, value, return_attn_probs=True)
    assert torch.allclose(probabilities.sum(-1), torch.ones(2, 4, 5))
    assert torch.allclose(result, probabilities @ value)

    def with_sink(query: Tensor, key: Tensor, value: Tensor, sink: Tensor) -> Tensor:
        scores = query @ key.mT / math.sqrt(8)
        weights = scores.exp() / (scores.exp().sum(-1, keepdim=True) + sink.exp()[:, None, None])
        return weights @ value

    compare(
        "FusedSDPA sink",
        lambda query, key, value, sink: kernels.FusedSDPA.apply(query, key, value, sink=sink),
        with_sink,
        *(query, key, value, sink),
    )
    for wrong, error in (({"return_dropout_mask": True}, NotImplementedError), ({"seq_padding_type": "x"}, ValueError)):
        with pytest.raises(error, match=next(iter(wrong))):
            kernels.FusedSDPA.apply(query, key, value, is_causal=True, **wrong)


def check_masks_beyond_the_range() -> None:
    """A mask in float32 for a query in bfloat16 and float16: its numbers become the largest ones, and no NaN."""
    for dtype in (torch.bfloat16, torch.float16):
        query = torch.randn(1, 1, 3, 8, dtype=dtype)
        mask = torch.full((3, 3), torch.finfo(torch.float32).min).triu(1)
        got = kernels.FusedSDPA.apply(query, query, query, mask)
        expected = kernels.FusedSDPA.apply(query, query, query, None, 0.0, True)
        assert got.dtype is dtype
        assert torch.allclose(got, expected, atol=1e-2)
    with pytest.raises(ValueError, match="`attn_mask` must be boolean or floating-point"):
        kernels.FusedSDPA.apply(query, query, query, torch.ones(3, 3, dtype=torch.int32))


# ---- rotary embeddings ----------------------------------------------------------------------------------------------


def angles(positions: Tensor, pairs: int) -> Tensor:
    return positions[..., None].double() / 100 ** (torch.arange(pairs) / pairs)


def blockwise(x: Tensor, turn: Tensor) -> Tensor:
    """The definition with complex numbers: the first half is real, the second one imaginary."""
    first, second = x.chunk(2, -1)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(turn), turn)
    return torch.cat((turned.real, turned.imag), -1)


def pairwise(x: Tensor, turn: Tensor) -> Tensor:
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(turn), turn)
    return torch.view_as_real(turned).flatten(-2)


def tables(turn: Tensor, *, neighbours: bool = False) -> tuple[Tensor, Tensor]:
    twice = turn.repeat_interleave(2, -1) if neighbours else torch.cat((turn, turn), -1)
    return twice.cos().float(), twice.sin().float()


def check_rotary() -> None:
    batch, heads, tokens, pairs, positions = 2, 3, 5, 4, 16
    p = torch.randn(batch, heads, tokens, 2 * pairs)
    every = angles(torch.arange(positions), pairs)
    cos, sin = tables(every)
    for offset in (0, 3):
        here = every[offset : offset + tokens]
        compare(
            f"V1 {offset}",
            lambda x, offset=offset: kernels.RotaryPosEmbeddingHelperV1.apply(x, cos, sin, offset),
            lambda x, here=here: blockwise(x, here),
            p,
        )
        # Megatron: tokens first
        compare(
            f"V1 tokens first {offset}",
            lambda x, offset=offset: kernels.RotaryPosEmbeddingHelperV1.apply(
                x, cos[:, None, None], sin[:, None, None], offset
            ),
            lambda x, here=here: blockwise(x, here[:, None, None]),
            p.permute(2, 0, 1, 3).contiguous(),
        )
    ids = torch.tensor([[0, 1, 2, 3, 4], [7, 3, 3, 15, 0]])
    compare(
        "V2",
        lambda x: kernels.RotaryPosEmbeddingHelperV2.apply(x, cos, sin, ids),
        lambda x: blockwise(x, every[ids][:, None]),
        p,
    )
    each = torch.stack((every, every.flip(0)))
    compare(
        "V2 a table for each sequence",
        lambda x: kernels.RotaryPosEmbeddingHelperV2.apply(x, *(one[:, None] for one in tables(each)), ids),
        lambda x: blockwise(x, each.gather(1, ids[..., None].expand(-1, -1, pairs))[:, None]),
        p,
    )
    cache = torch.stack((every.cos(), every.sin()), -1).float()
    wide = torch.randn(batch, heads, tokens, 2 * pairs + 3)

    def partly(x: Tensor, turn: Tensor) -> Tensor:
        return torch.cat((pairwise(x[..., : 2 * pairs], turn), x[..., 2 * pairs :]), -1)

    compare(
        "V3",
        lambda x: kernels.RotaryPosEmbeddingHelperV3.apply(x, cache[None]),
        lambda x: partly(x, every[:tokens]),
        wide,
    )
    mode = kernels.RotaryPosEmbeddingMode.PAIRWISE
    compare(
        "PAIRWISE",
        lambda x: kernels.apply_rotary_pos_emb(x, *tables(every[:tokens], neighbours=True), None, 0, mode),
        lambda x: pairwise(x, every[:tokens]),
        p,
    )
    assert kernels.RotaryPosEmbeddingHelperV1.apply(p.bfloat16(), cos, sin, 0).dtype is torch.bfloat16


# ---- others ---------------------------------------------------------------------------------------------------------


def check_norms_and_softmax() -> None:
    x, weight = torch.randn(2, 5, 16).mul_(30), torch.randn(16)
    compare(
        "FusedRMSNorm",
        lambda x, weight: FusedRMSNorm.apply(x, weight, 1e-6),
        lambda x, weight: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight,
        *(x, weight),
    )
    compare(
        "CustomSoftmax",
        lambda x: kernels.CustomSoftmax.apply(x, 1),
        lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
        x,
    )
    assert FusedRMSNorm.apply(torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(4), 1e-6).dtype is torch.bfloat16
    with pytest.raises(ValueError, match="`flavor` must be 0, 1 or 2; got 3"):
        kernels.CustomSoftmax.apply(torch.ones(2), 3)


def check_ctc() -> None:
    scores = torch.randn(12, 3, 5)
    targets = torch.tensor([[1, 2, 3, -100], [4, 4, 1, 2], [2, -100, -100, -100]])
    lengths, steps = targets.ge(0).sum(-1), torch.tensor([12, 11, 9])
    compare(
        "CTCLoss",
        lambda x: kernels.CTCLoss.apply(x.log_softmax(-1), targets, steps, lengths, 0, "mean", False),
        lambda x: torch.nn.functional.ctc_loss(x.log_softmax(-1), targets.clamp(min=0), steps, lengths),
        scores,
    )


def check_that_lists_change_none(*checks: Callable[[], Any]) -> None:
    """Kernels that are in no list compute the same under HMP's lists."""
    hmp.convert()
    for check in checks:
        check()
    hmp.restore()


torch.manual_seed(0)
check_attention()
check_valid_lengths_and_windows()
check_probabilities_and_sinks()
check_masks_beyond_the_range()
check_rotary()
check_norms_and_softmax()
check_ctc()
check_that_lists_change_none(check_rotary, check_norms_and_softmax, check_ctc)
