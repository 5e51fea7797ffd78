"""transformers: blocks that it protects, models that it loads, embeddings that it extends.

Needs transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from habana_mp import hmp
from helpers.late import Late
from helpers.processes import run_script

transformers = Late("transformers")

SQUARE = torch.linspace(-1, 1, 16).reshape(4, 4)


pytestmark = pytest.mark.usefixtures("compiled_anew")


@pytest.mark.parametrize("backend", [None, "aot_eager"])
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


ROTARY = """
import torch
import transformers
from habana_mp import hmp
from transformers.models.llama import modeling_llama
from transformers.models.qwen2_vl import modeling_qwen2_vl
hmp.convert()
config = transformers.LlamaConfig(hidden_size=32, num_attention_heads=4)
embedding = modeling_llama.LlamaRotaryEmbedding(config)
vision = modeling_qwen2_vl.Qwen2VLVisionRotaryEmbedding(modeling_qwen2_vl.Qwen2VLVisionConfig())
x, positions = torch.zeros(1, 4, 32), torch.tensor([[0, 1001, 4001, 30001]])
def made():
    return [*embedding(x, positions), *vision(x, torch.tensor([[3, 1001, 7], [9, 2001, 8]]))]
lowered = made()
assert torch.mul(x, x).dtype is torch.bfloat16
compiled = torch.compile(made, backend="aot_eager", fullgraph=True)()
with hmp.autocast("cpu", preset="hmp-default"):
    assert torch.mul(x, x).dtype is torch.bfloat16
    in_a_region = made()
forward = modeling_llama.LlamaRotaryEmbedding.forward
hmp.restore()
expected = made()
for some in (lowered, compiled, in_a_region):
    for one, other in zip(some, expected, strict=True):
        assert one.dtype is torch.float32, one.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
assert "without_casts" not in forward.__code__.co_names
print("exact")
"""


def test_angles_of_rotary_embeddings_are_made_in_float32() -> None:
    done = run_script(ROTARY)
    assert (done.stdout, done.returncode) == ("exact\n", 0), done.stderr


_SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 99}


def llama() -> Any:
    return transformers.LlamaModel, transformers.LlamaConfig(
        **_SMALL,
        intermediate_size=32,
        rope_parameters={
            **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            **{"original_max_position_embeddings": 64, "rope_theta": 5e5},
        },
    )


def swin() -> Any:
    return transformers.Swinv2Model, transformers.Swinv2Config(
        image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4
    )


@pytest.mark.parametrize("made", [llama, swin])
def test_a_model_of_transformers_is_loaded_as_without_casts(made: Any, tmp_path: Path) -> None:
    kind, config = made()
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
