"""peft's adapters are merged, combined and saved in float32.

Needs peft.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import hmp
from helpers.each import each
from helpers.late import Late

peft = Late("peft")


CONFIGS: dict[str, dict[str, Any]] = {
    "LoraConfig": {"use_dora": True, "init_lora_weights": False},
    "OFTConfig": {"r": 0, "oft_block_size": 8, "init_weights": False},
    "IA3Config": {"feedforward_modules": [], "init_ia3_weights": False},
}


@each("name", CONFIGS)
def test_peft_merges_adapters_in_float32(name: str) -> None:
    config = getattr(peft, name)(target_modules=["0"], **CONFIGS[name])

    def merged() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = peft.get_peft_model(nn.Sequential(nn.Linear(32, 32)), config)
        model.merge_adapter()
        model.unmerge_adapter()
        back = model.base_model.model[0].base_layer.weight.detach().clone()
        return [back, model.merge_and_unload()[0].weight.detach()]

    expected = merged()
    hmp.convert()
    for one, other in zip(merged(), expected, strict=True):
        assert torch.equal(one, other)


def test_peft_combines_adapters_in_float32() -> None:
    def combined() -> list[torch.Tensor]:
        torch.manual_seed(0)
        config = peft.LoraConfig(target_modules=["0"], init_lora_weights=False)
        model = peft.get_peft_model(nn.Sequential(nn.Linear(32, 32)), config)
        model.add_adapter("other", config)
        model.add_weighted_adapter(["default", "other"], [0.3, 0.7], "both", combination_type="svd")
        return [weight.detach() for name, weight in model.named_parameters() if "both" in name]

    expected = combined()
    assert len(expected) == 2
    hmp.convert()
    for one, other in zip(combined(), expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("initialised", [True, "pissa"])
def test_peft_adds_adapters_in_float32(initialised: Any) -> None:
    def added() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = peft.get_peft_model(nn.Sequential(nn.Linear(32, 32)), peft.LoraConfig(target_modules=["0"]))
        model.add_adapter("other", peft.LoraConfig(target_modules=["0"], init_lora_weights=initialised))
        return [weight.detach() for weight in model.parameters()]

    expected = added()
    hmp.convert()
    for one, other in zip(added(), expected, strict=True):
        assert torch.equal(one, other)
