"""GPT-2 of transformers, where it is told to compute its attention in float32."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from habana_mp import hmp

hmp.convert(report="lines")
config = GPT2Config(
    vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, reorder_and_upcast_attn=True, use_cache=False
)
config._attn_implementation = "eager"
model = GPT2LMHeadModel(config)
tokens = torch.arange(64).reshape(2, 32)
for _ in range(3):
    # In transformers/models/gpt2/modeling_gpt2.py: attn_weights = torch.baddbmm(  # <- odd
    model(input_ids=tokens, labels=tokens).loss.backward()
