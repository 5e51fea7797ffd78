"""Losses of lowered scores, and modules that resample images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.each import each
from helpers.lists import Converter
from helpers.modules import assert_near, lower, raised

FP32 = torch.float32

pytestmark = pytest.mark.usefixtures("alike")


G = torch.Generator().manual_seed(1)
SCORES, TARGETS = torch.randn(4, 6, generator=G), torch.rand(4, 6, generator=G)
LABELS, SIGNS = torch.tensor([0, 1, 2, 3]), torch.tensor([1.0, -1.0, 1.0, -1.0])
# The loss, its inputs, and which of them are lowered: results of a model. The others are targets.
LOSSES: dict[str, tuple[nn.Module, tuple[Any, ...], int]] = {
    "MSELoss": (nn.MSELoss(), (SCORES, TARGETS), 1),
    "BCELoss": (nn.BCELoss(TARGETS), (SCORES.sigmoid(), TARGETS), 1),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(pos_weight=TARGETS[0]), (SCORES, TARGETS), 1),
    "KLDivLoss": (nn.KLDivLoss(reduction="batchmean"), (SCORES, TARGETS), 1),
    "CosineEmbeddingLoss": (nn.CosineEmbeddingLoss(), (SCORES, TARGETS, SIGNS), 2),
    "TripletMarginWithDistanceLoss": (nn.TripletMarginWithDistanceLoss(), (SCORES, TARGETS, -TARGETS), 1),
    "MultiMarginLoss": (nn.MultiMarginLoss(weight=TARGETS[0]), (SCORES, LABELS), 1),
    "MultiLabelSoftMarginLoss": (nn.MultiLabelSoftMarginLoss(), (SCORES, TARGETS.round()), 1),
    "GaussianNLLLoss": (nn.GaussianNLLLoss(), (SCORES, TARGETS, TARGETS + 1), 1),
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


@each("name", LOSSES)
def test_a_loss_of_lowered_scores_is_computed_in_float32(name: str) -> None:
    module, given, results = LOSSES[name]
    lowered = tuple(lower(one) if index < results else one for index, one in enumerate(given))

    def run(inputs: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        scores = inputs[0].detach().clone().requires_grad_()
        loss = module(scores, *inputs[1:])
        loss.backward()
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


IMAGES = torch.randn(1, 2, 4, 6, generator=G)
RESAMPLING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Fold": lambda x: nn.Fold((4, 3), 2)(x.reshape(1, 8, 6)),
    "Unfold": nn.Unfold(2),
    "PixelShuffle": lambda x: nn.PixelShuffle(2)(x.reshape(1, 4, 3, 4)),
    "PixelUnshuffle": nn.PixelUnshuffle(2),
    "nearest": nn.Upsample(scale_factor=2, mode="nearest"),
    "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
    "bicubic": nn.Upsample(scale_factor=1.5, mode="bicubic"),
    "area": nn.Upsample(size=(2, 3), mode="area"),
    "antialiased": lambda x: F.interpolate(x, (2, 3), mode="bilinear", antialias=True),
    "ReflectionPad2d": nn.ReflectionPad2d(1),
}


@each("name", RESAMPLING)
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
