"""Small models of transformers' architectures, with random weights: makes them, trains a step, and compares two
steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from helpers.late import Late

transformers = Late("transformers")
modeling_auto = Late("transformers.models.auto.modeling_auto")

#: For each kind: the name in transformers' table of its architectures, and the class that makes one of them.
KINDS = {
    "causal": ("CAUSAL_LM", "AutoModelForCausalLM"),
    "masked": ("MASKED_LM", "AutoModelForMaskedLM"),
    "sequence": ("SEQUENCE_CLASSIFICATION", "AutoModelForSequenceClassification"),
    "seq2seq": ("SEQ_TO_SEQ_CAUSAL_LM", "AutoModelForSeq2SeqLM"),
    "image": ("IMAGE_CLASSIFICATION", "AutoModelForImageClassification"),
}

VOCABULARY, PAD, BEGIN, END = 128, 0, 1, 2
LENGTH = 12

#: Settings that make a model small. A setting is used if the configuration has this attribute, and its value is an
#: integer or None.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "entity_vocab_size"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "entity_emb_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "d_ff", "d_inner", "hidden_dim", "ffn_hidden_size", "n_inner"), 64
    ),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size", "feed_forward_size"), 64),
    **dict.fromkeys(("shared_expert_intermediate_size", "max_position_embeddings"), 64),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "attention_head_size", "v_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "patch_size"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "mamba_d_state"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_key_value_heads"), 2),
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1),
    "rotary_dim": 4,
    "image_size": 64,
    "pad_token_id": PAD,
    "bos_token_id": BEGIN,
    "eos_token_id": END,
    "decoder_start_token_id": BEGIN,
}

#: Further settings for single types of configurations; each stage of a model for images has one block and few channels.
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "attn_layer_indices": [1]},
    "bit": {"num_groups": 8, "hidden_sizes": [32, 32, 64, 64]},
    "beit": {"vocab_size": 8},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]},
            "full_attention": None,
        },
    },
    "convnext": {"num_stages": 4, "hidden_sizes": [8, 16, 32, 64], "patch_size": 4},
    "convnextv2": {"num_stages": 4, "hidden_sizes": [8, 16, 32, 64], "patch_size": 4},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "donut-swin": {"embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "patch_size": 4, "window_size": 4},
    "efficientnet": {"width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 128, "initializer_range": 0.2},
    "esmc": {"num_key_value_heads": 4},
    "focalnet": {"embed_dim": 16},
    "gemma3n_text": {"num_kv_shared_layers": 0, "intermediate_size": 64, "activation_sparsity_pattern": None},
    "gemma4_text": {"num_kv_shared_layers": 0, "per_layer_config": {}},
    "gemma4_unified_text": {"num_kv_shared_layers": 0, "per_layer_config": {}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8, "layer_types": ["linear_attention", "attention"]},
    "hgnet_v2": {
        "hidden_sizes": [32, 32, 64, 64],
        "stage_in_channels": [48, 32, 32, 64],
        "stage_mid_channels": [16, 16, 16, 16],
        "stage_out_channels": [32, 32, 64, 64],
        "stage_numb_of_layers": [1, 1, 1, 1],
    },
    "hiera": {"embed_dim": 16, "image_size": [64, 64]},
    "imagegpt": {"vocab_size": 128},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "levit": {"image_size": 64, "patch_size": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lilt": {"hidden_size": 48},
    "mamba2": {"head_dim": 8, "num_heads": 8, "n_groups": 1, "state_size": 16},
    "mobilevitv2": {"initializer_range": 0.2, "patch_size": 2, "image_size": 64},
    "mobilevit": {"patch_size": 2, "image_size": 64},
    "neomme": {"head_dim": 32},
    "perceiver": {"num_latents": 8, "d_latents": 32, "num_self_attends_per_block": 2, "max_position_embeddings": 12},
    "poolformer": {"hidden_sizes": [8, 16, 32, 64]},
    "qwen4_exp_text": {
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
    },
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {
        "axial_pos_embds_dim": [16, 16],
        "axial_pos_shape": [4, 3],
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
    },
    "regnet": {"hidden_sizes": [16, 16, 32, 32], "groups_width": 8},
    "resnet": {"embedding_size": 16, "hidden_sizes": [16, 32, 32, 64]},
    "swin": {"embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "patch_size": 4, "window_size": 4},
    "swinv2": {"embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "patch_size": 4, "window_size": 4},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
    },
    "zaya": {"num_experts_per_tok": 1},
}


def pairs(kinds: tuple[str, ...] = tuple(KINDS)) -> Iterator[tuple[str, str]]:
    """Yields every kind with every type of model that transformers has for it."""
    for kind in kinds:
        for model_type in getattr(modeling_auto, f"MODEL_FOR_{KINDS[kind][0]}_MAPPING_NAMES"):
            yield kind, model_type


def make_model(kind: str, model_type: str, **settings: Any) -> Any:
    """Returns a small model with random weights, always the same, and no dropout; ``settings`` override others."""
    table = getattr(modeling_auto, f"MODEL_FOR_{KINDS[kind][0]}_MAPPING_NAMES")
    config = small_config(transformers.CONFIG_MAPPING[model_type](), **settings)
    if kind == "seq2seq" or config.is_encoder_decoder:
        config.decoder_start_token_id = BEGIN
    if kind == "causal" and "is_decoder" in vars(config):
        config.is_decoder = True
    if isinstance(table[model_type], tuple):
        config.architectures = [table[model_type][0]]
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    return getattr(transformers, KINDS[kind][1]).from_config(config, dtype=torch.float32).train()


def small_config(default: Any, **settings: Any) -> Any:
    """Returns a small configuration of the same type as ``default``."""
    return type(default)(**_small_settings(default) | settings)


def _small_settings(default: Any) -> dict[str, Any]:
    kind, values = type(default), vars(default)
    settings: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, float) and "drop" in name:
            settings[name] = 0.0
        elif name == "depths":
            settings[name] = [1] * len(value)
    for name, value in SMALL.items():
        own_name = kind.attribute_map.get(name, name)
        if type(values.get(own_name, "")) in (int, type(None)):
            settings[own_name] = value
    if "qk_nope_head_dim" in settings:
        settings["num_key_value_heads"] = settings["num_attention_heads"]
    settings |= _few_layers(values)
    for name in kind.sub_configs:
        part = values.get(name)
        if part is not None:
            settings[name] = type(part)(**{**part.to_dict(), **_small_settings(part)})
    return settings | OWN.get(default.model_type, {})


def _few_layers(values: dict[str, Any]) -> dict[str, Any]:
    """Returns settings with the fewest layers that contain every kind of layer in the configuration, but at least
    two."""
    count = values.get("num_hidden_layers")
    lists = {
        name: value
        for name, value in values.items()
        if "layer" in name and isinstance(value, list) and len(value) == count
    }
    if not lists:
        return {}
    rows = list(zip(*lists.values(), strict=True))
    chosen = sorted({rows.index(row) for row in rows})
    if len(chosen) == 1:
        chosen = [0, 1]
    return {"num_hidden_layers": len(chosen)} | {name: [value[i] for i in chosen] for name, value in lists.items()}


def make_batch(kind: str, model: Any) -> dict[str, torch.Tensor]:
    """Returns the inputs of a training step: two sequences, one of them padded, or eight images, with labels."""
    torch.manual_seed(1)
    name = model.main_input_name
    if kind == "image" and name != "input_ids":
        size = getattr(model.config, "image_size", 64)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        labels = torch.arange(8) % 2
        noise = torch.randn(8, getattr(model.config, "num_channels", 3), height, width)
        return {name: 0.5 * noise + labels[:, None, None, None], "labels": labels}
    tokens = torch.randint(3, VOCABULARY - 8, (2, LENGTH))
    if kind in ("sequence", "image"):
        tokens[:, -1] = END
        return {name: tokens, "attention_mask": torch.ones_like(tokens), "labels": torch.tensor([0, 1])}
    mask = torch.ones_like(tokens)
    mask[0, -3:] = 0
    return {name: tokens, "attention_mask": mask, "labels": tokens.clone()}


@dataclass(frozen=True)
class Step:
    """The result of a training step: the loss, and the gradients by the names of their parameters."""

    loss: float
    gradients: dict[str, torch.Tensor]

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and all(bool(one.isfinite().all()) for one in self.gradients.values())

    def faults(self, reference: Step) -> list[str]:
        """Returns a description of the faults of this step's gradients. ``reference`` is the same step in FP32."""
        mine, theirs = self.gradients, reference.gradients
        faults = [f"no gradient of {name}" for name in theirs.keys() - mine.keys()]
        faults += [f"a gradient of {name}, which has none in FP32" for name in mine.keys() - theirs.keys()]
        faults += [f"not finite: {name}" for name, one in mine.items() if not one.isfinite().all()]
        faults += [
            f"a gradient of {name} in {one.dtype}"
            for name, one in mine.items()
            if name in theirs and one.dtype is not theirs[name].dtype
        ]
        return faults if math.isfinite(self.loss) else [f"loss {self.loss}", *faults]


@dataclass(frozen=True)
class Distance:
    """The distance of two steps: the relative difference of their losses, and the cosine of their gradients."""

    loss: float
    cosine: float

    @property
    def close(self) -> bool:
        return self.loss < 0.02 and self.cosine > 0.98

    def __str__(self) -> str:
        return f"loss {self.loss:.2%}, cosine {self.cosine:.4f}"


def train_step(model: Any, batch: dict[str, torch.Tensor], state: AbstractContextManager[Any] | None = None) -> Step:
    """Trains a copy of the model for a step, always with the same random state; ``state`` surrounds the forward."""
    model = copy.deepcopy(model)
    torch.manual_seed(2)
    with state or nullcontext():
        loss = model(**batch).loss
    loss.backward()
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return Step(loss.item(), gradients)


def distance(step: Step, reference: Step) -> Distance:
    names = sorted(step.gradients.keys() & reference.gradients.keys())
    mine, theirs = (torch.cat([one.gradients[name].double().flatten() for name in names]) for one in (step, reference))
    cosine = torch.nn.functional.cosine_similarity(mine, theirs, dim=0).item()
    return Distance(abs(step.loss - reference.loss) / max(abs(reference.loss), 1e-6), cosine)
