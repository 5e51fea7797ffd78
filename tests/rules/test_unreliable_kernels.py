"""Operations that are wrong in lower precision, or would cancel, get float32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import FP32, M, N

SMALLEST = torch.finfo(FP32).min


@pytest.mark.parametrize("preset", ["hmp-default", "torch-cuda", "xpu-amp-bf16", "hpu-autocast"])
def test_kernels_that_cannot_be_relied_on_get_float32(preset: str) -> None:
    """The sampler reads beside larger images, the others add up in the lower precision."""
    hmp.convert(preset=preset)
    image = torch.rand(1, 4, 200, 200).bfloat16().requires_grad_()
    grid = F.affine_grid(torch.eye(2, 3)[None], [1, 4, 200, 200], align_corners=True).bfloat16()
    sampled = F.grid_sample(image, grid, align_corners=True)
    sampled.float().sum().backward()
    expected = F.grid_sample(image.float(), grid.float(), align_corners=True)
    assert sampled.dtype is FP32
    assert torch.equal(sampled, expected)
    assert torch.isfinite(image.grad).all()
    video = torch.full((1, 1, 32, 64, 64), 0.25).bfloat16()
    assert F.adaptive_avg_pool3d(video, (2, 1, 1)).flatten().tolist() == [0.25, 0.25]
    assert torch.histc(torch.full((5000,), 0.5).bfloat16(), 1, 0, 1).item() == 5000


@each("preset", ["hmp-guide-o1", "hmp-guide-o2", "resnet50", "gaudi/nlp/bert", "listed in bf16"])
def test_a_loss_of_logits_that_would_cancel_in_lower_precision_runs_in_float32(
    converted: Converter, preset: str
) -> None:
    if preset == "listed in bf16":
        converted(bf16=["binary_cross_entropy_with_logits"])
    else:
        hmp.convert(preset=preset)
    logits = torch.linspace(-20, 20, 801).bfloat16().requires_grad_()
    exact = logits.detach().double().requires_grad_()
    for target in (torch.zeros(801), torch.ones(801), torch.full((801,), 0.5)):
        logits.grad = exact.grad = None
        loss = F.binary_cross_entropy_with_logits(logits, target.bfloat16(), reduction="none")
        expected = F.binary_cross_entropy_with_logits(exact, target.double(), reduction="none")
        assert loss.dtype is FP32
        torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
        loss.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=2**-8, atol=1e-7)


def test_what_does_not_follow_its_parts_is_as_exact_as_one_rounding() -> None:
    """That is why the default lists leave attention and `logsumexp` in lower precision, with `softmax` and `log` in the
    float32 list."""
    torch.manual_seed(0)
    query = torch.randn(1, 4, 200, 32).bfloat16()
    wide = (torch.randn(64, 30000) * 2).bfloat16()
    expected = F.scaled_dot_product_attention(query.float(), query.float(), query.float())
    expected_sum = torch.logsumexp(wide.float(), -1)
    hmp.convert()
    torch.testing.assert_close(
        F.scaled_dot_product_attention(query, query, query), expected.bfloat16(), rtol=2**-7, atol=2**-8
    )
    torch.testing.assert_close(torch.logsumexp(wide, -1), expected_sum.bfloat16(), rtol=2**-7, atol=0)


def test_attention_with_a_mask_of_the_smallest_float_is_finite(converted: Converter) -> None:
    mask = torch.zeros(1, 4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), SMALLEST)
    hmp.convert()
    out = F.scaled_dot_product_attention(M[None].bfloat16(), N[None].bfloat16(), M[None].bfloat16(), attn_mask=mask)
    assert torch.isfinite(out).all()
