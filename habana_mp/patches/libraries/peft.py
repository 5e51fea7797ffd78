"""peft creates and merges adapters."""

_TUNER = ("inject_adapter", "merge_adapter", "unmerge_adapter", "_unload_and_optionally_merge")
WITHOUT_CASTS = {
    "peft.tuners.tuners_utils": tuple(f"BaseTuner.{name}" for name in _TUNER),
    "peft.peft_model": ("PeftModel.get_prompt_embedding_to_save",),
    "peft.tuners.lora.model": ("LoraModel.add_weighted_adapter",),
}
