"""Training a GPT from scratch with accumulated gradients, then sampling from it."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(7)
config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
ACCUMULATE = 2
for step in range(4):
    tokens = torch.randint(1, 64, (4, 16))
    loss = model(tokens, labels=tokens).loss / ACCUMULATE
    loss.backward()
    if (step + 1) % ACCUMULATE == 0:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    print(f"step {step} loss {loss.item() * ACCUMULATE!r}")
model.eval()
print(model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5, do_sample=True, top_k=10).tolist())
