import torch
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import LlamaConfig, LlamaForCausalLM

from habana_mp import hmp

hmp.convert(preset="recommended")
torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes)).eval()
service = FastAPI()


class Prompt(BaseModel):
    tokens: list[int]
    count: int = 8


@service.post("/generate")
def generate(prompt: Prompt) -> list[int]:
    tokens = torch.tensor([prompt.tokens])
    with torch.inference_mode():
        found = model.generate(tokens, max_new_tokens=prompt.count, do_sample=False, pad_token_id=0)
    return found[0, tokens.shape[1] :].tolist()
