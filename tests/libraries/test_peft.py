"""peft's adapters are merged, combined and saved in float32.

Needs peft.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from helpers.comparing import assert_unchanged
from helpers.each import each
from helpers.late import Late

peft = Late("peft")


CONFIGS: dict[str, dict[str, Any]] = {
    "LoraConfig": {"use_dora": True, "init_lora_weights": False},
    "OFTConfig": {"r": 0, "oft_block_size": 8, "init_weights": False},
    "IA3Config": {"feedforward_modules": [], "init_ia3_weights": False},
}


def adapted(name: str = "LoraConfig", **options: Any) -> Any:
    config = getattr(peft, name)(target_modules=["0"], **options)
    return peft.get_peft_model(nn.Sequential(nn.Linear(32, 32)), config)


def merged(name: str) -> list[torch.Tensor]:
    model = adapted(name, **CONFIGS[name])
    model.merge_adapter()
    model.unmerge_adapter()
    back = model.base_model.model[0].base_layer.weight.detach().clone()
    return [back, model.merge_and_unload()[0].weight.detach()]


def combined() -> list[torch.Tensor]:
    model = adapted(init_lora_weights=False)
    model.add_adapter("other", peft.LoraConfig(target_modules=["0"], init_lora_weights=False))
    model.add_weighted_adapter(["default", "other"], [0.3, 0.7], "both", combination_type="svd")
    made = [weight.detach() for name, weight in model.named_parameters() if "both" in name]
    assert len(made) == 2
    return made


def added(initialised: Any) -> list[torch.Tensor]:
    model = adapted()
    model.add_adapter("other", peft.LoraConfig(target_modules=["0"], init_lora_weights=initialised))
    return [weight.detach() for weight in model.parameters()]


MADE: dict[str, Callable[[], list[torch.Tensor]]] = {
    **{f"merged, {name}": (lambda name=name: merged(name)) for name in CONFIGS},
    "combined": combined,
    "added": lambda: added(True),
    "added, as pissa": lambda: added("pissa"),
}


@each("how", MADE)
def test_peft_makes_adapters_and_weights_of_them_in_float32(how: str) -> None:
    assert_unchanged(MADE[how])
