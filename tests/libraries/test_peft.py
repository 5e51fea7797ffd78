"""peft's adapters are merged, combined and saved in float32.

Needs peft.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from peft import IA3Config, LoraConfig, OFTConfig, PromptEncoderConfig, get_peft_model, get_peft_model_state_dict
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_same


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
