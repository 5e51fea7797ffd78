"""Rules by module in models with adapters of peft: its wrappers are no part of a path."""

from __future__ import annotations

import torch

from helpers.each import each
from helpers.late import Late
from helpers.lists import Converter
from helpers.steered import LOWERED, STEERED, inputs, network, options_for, precisions

peft = Late("peft")


@each("how", STEERED)
@each("merged", [False, True])
def test_a_rule_holds_in_a_module_with_adapters(converted: Converter, how: str, merged: bool) -> None:
    model = network()
    options = options_for(how, model, "layers.1")
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["proj"], r=2))
    if merged:
        adapted.merge_adapter()
    converted(bf16=["linear", "softmax"], **options)
    outputs = adapted(inputs())
    assert precisions(outputs) == [LOWERED, STEERED[how], LOWERED, LOWERED]
    if not merged:
        sum(one.float().square().sum() for part in outputs for one in part).backward()


def test_a_rule_names_an_adapter_or_the_layer_that_it_adapts(converted: Converter) -> None:
    adapted = peft.get_peft_model(network(), peft.LoraConfig(target_modules=["proj"], r=2))
    seen = {}
    for name, module in adapted.named_modules():
        module.register_forward_hook(lambda _, __, out, name=name: seen.__setitem__(name, out))
    converted(bf16=["linear"], rules={"linear @ layers.0.proj.lora_A": "fp32", "linear @ layers.1.proj": "fp32"})
    adapted(inputs())
    prefix = "base_model.model.layers"
    assert seen[f"{prefix}.0.proj.lora_A.default"].dtype is torch.float32
    assert seen[f"{prefix}.0.proj.base_layer"].dtype is torch.bfloat16
    assert seen[f"{prefix}.1.proj.base_layer"].dtype is torch.float32
