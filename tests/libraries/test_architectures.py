"""Architectures of transformers train under the default lists, and near to FP32. `make sweep` takes all of them.

This needs transformers.
"""

from __future__ import annotations

import pytest
import torch

from habana_mp import hmp

SAMPLE = {
    "causal": "llama gpt2 bloom mamba2 mixtral jamba qwen3_next gpt_oss",
    "masked": "bert deberta fnet",
    "sequence": "albert reformer perceiver",
    "seq2seq": "t5 bart",
    "image": "vit swin resnet",
}
PAIRS = [(kind, name) for kind, names in SAMPLE.items() for name in names.split()]


@pytest.mark.parametrize(("kind", "model_type"), PAIRS)
def test_gradients_are_finite_float32_and_near_to_those_of_fp32(kind: str, model_type: str) -> None:
    from helpers.architectures import distance, make_batch, make_model, train_step

    model = make_model(kind, model_type)
    batch = make_batch(kind, model)
    plain = train_step(model, batch)
    hmp.reset_report()
    hmp.convert()
    converted = train_step(model, batch)
    hmp.restore()
    assert plain.finite
    assert any(row.casts > 0 for row in hmp.report(show=False) if row.precision == "bf16")
    assert converted.faults(plain) == []
    found = distance(converted, plain)
    if not found.close:
        # Batch norm over few pixels is this sensitive: nobody with bf16 convolutions comes nearer.
        peer = distance(train_step(model, batch, torch.autocast("cpu", torch.bfloat16)), plain)
        assert not peer.close
        assert found.loss <= 1.01 * peer.loss
        assert found.cosine >= peer.cosine - 0.001
