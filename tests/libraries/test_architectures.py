"""Architectures of transformers train under the default lists, and near to FP32. `make sweep` takes all of them.

This needs transformers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from habana_mp import hmp
from helpers.architectures import Distance, Step, distance, make_batch, make_model, train_step

SAMPLE = {
    "causal": "llama gpt2 gpt_neox bloom opt falcon mpt xlnet gemma3_text rwkv mamba2 mixtral deepseek_v3 jamba "
    "recurrent_gemma qwen3_next lfm2 gpt_oss dbrx",
    "masked": "bert deberta deberta-v2 longformer big_bird fnet convbert funnel xmod",
    "sequence": "distilbert albert canine reformer perceiver nystromformer",
    "seq2seq": "t5 bart led switch_transformers fsmt prophetnet",
    "image": "vit swin convnext resnet levit poolformer segformer beit",
}
PAIRS = [(kind, name) for kind, names in SAMPLE.items() for name in names.split()]
each = pytest.mark.parametrize(("kind", "model_type"), PAIRS)


@dataclass(frozen=True)
class Trained:
    """One step from the same weights in FP32 and under the default lists."""

    model: Any
    batch: dict[str, torch.Tensor]
    plain: Step
    converted: Step
    lowered: int  # casts to bf16

    @property
    def distance(self) -> Distance:
        return distance(self.converted, self.plain)


@functools.cache
def trained(kind: str, model_type: str) -> Trained:
    model = make_model(kind, model_type)
    batch = make_batch(kind, model)
    plain = train_step(model, batch)
    hmp.reset_report()
    hmp.convert()
    try:
        converted = train_step(model, batch)
    finally:
        hmp.restore()
    lowered = sum(row.casts for row in hmp.report() if row.precision == "bf16")
    return Trained(model, batch, plain, converted, lowered)


@each
def test_the_same_parameters_get_finite_float32_gradients(kind: str, model_type: str) -> None:
    step = trained(kind, model_type)
    assert step.plain.finite
    assert step.lowered > 0
    assert step.converted.faults(step.plain) == []


@each
def test_loss_and_gradients_are_near_to_fp32(kind: str, model_type: str) -> None:
    step = trained(kind, model_type)
    if step.distance.close:
        return
    # Batch norm over few pixels is this sensitive: nobody with bf16 convolutions comes nearer.
    peer = distance(train_step(step.model, step.batch, torch.autocast("cpu", torch.bfloat16)), step.plain)
    assert not peer.close
    assert step.distance.loss <= 1.01 * peer.loss
    assert step.distance.cosine >= peer.cosine - 0.001
