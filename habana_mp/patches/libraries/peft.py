"""peft creates and merges adapters, and wraps models and layers."""

from habana_mp.patches.tools.casts_off import without_casts
from habana_mp.patches.tools.named_functions import Exchange, assumption_of_library

_FUNCTIONS = assumption_of_library("peft", "make and merge adapters")

EXCHANGES = (
    Exchange(
        without_casts,
        {
            "peft.tuners.tuners_utils": (
                *("BaseTuner.inject_adapter", "BaseTuner.merge_adapter", "BaseTuner.unmerge_adapter"),
                "BaseTuner._unload_and_optionally_merge",
            ),
            "peft.peft_model": ("PeftModel.get_prompt_embedding_to_save",),
            "peft.tuners.lora.model": ("LoraModel.add_weighted_adapter",),
        },
        _FUNCTIONS,
    ),
)

WRAPPERS = {
    "peft.peft_model.PeftModel": "base_model",
    "peft.tuners.tuners_utils.BaseTuner": "model",
    "peft.tuners.tuners_utils.BaseTunerLayer": "base_layer",
}
