import os
import sys

import torch
import torch.distributed.checkpoint.state_dict as checkpoints
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard

from habana_mp import hmp

dist.init_process_group("gloo")
hmp.convert(preset="recommended")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 10))
if sys.argv[1:] == ["ddp"]:
    model = torch.nn.parallel.DistributedDataParallel(model)
else:
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
whole = checkpoints.StateDictOptions(full_state_dict=True, cpu_offload=True)
losses, first = [], 0
if os.path.exists("half.pt"):
    weights, state = torch.load("half.pt")
    checkpoints.set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state, options=whole)
    first = 4
for step in range(first, 8):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    x, y = torch.randn(32, 64, generator=generator), torch.randint(0, 10, (32,), generator=generator)
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 3:
        state = checkpoints.get_state_dict(model, optimizer, options=whole)
        if dist.get_rank() == 0:
            torch.save(state, "half.pt")
print(losses)
hmp.report(ranks=True)
dist.destroy_process_group()
