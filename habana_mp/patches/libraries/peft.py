"""peft creates and merges adapters, and wraps models and layers."""

from habana_mp.patches.tools.casts_off import without_casts
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_library

_FUNCTIONS = assumption_of_library("peft", "make and merge adapters")

_TUNER = ("inject_adapter", "merge_adapter", "unmerge_adapter", "_unload_and_optionally_merge")
_ADAPTERS: Table = {
    "peft.tuners.tuners_utils": tuple(f"BaseTuner.{name}" for name in _TUNER),
    "peft.peft_model": ("PeftModel.get_prompt_embedding_to_save",),
    "peft.tuners.lora.model": ("LoraModel.add_weighted_adapter",),
}
EXCHANGES = (Exchange(without_casts, _ADAPTERS, _FUNCTIONS),)

WRAPPERS = {
    "peft.peft_model.PeftModel": "base_model",
    "peft.tuners.tuners_utils.BaseTuner": "model",
    "peft.tuners.tuners_utils.BaseTunerLayer": "base_layer",
}
