import torch
from transformers import LlamaConfig, LlamaForCausalLM

from habana_mp import hmp

hmp.convert(preset="half")
torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes)).bfloat16().save_pretrained("checkpoint")

model = LlamaForCausalLM.from_pretrained("checkpoint", dtype="auto").eval()  # in bfloat16, as it was saved
tokens = torch.tensor([[1, 2, 3]])
with torch.inference_mode():
    logits = model(tokens).logits
    found = model.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=0)
print(logits.dtype, found.tolist())
hmp.report()
