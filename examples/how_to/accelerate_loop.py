import os

import torch
from accelerate import Accelerator

from habana_mp.frameworks.accelerate import prepare

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
batches = torch.utils.data.DataLoader(data, batch_size=32)

accelerator = Accelerator(mixed_precision="bf16", project_dir="out", log_with="tensorboard")
accelerator.init_trackers("run")
model, optimizer, batches = prepare(accelerator, model, optimizer, batches)
losses, done = [], 0
if os.path.isdir("out/half"):
    accelerator.load_state("out/half")
    batches, done = accelerator.skip_first_batches(batches, 4), 4
for step, (x, y) in enumerate(batches, done + 1):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    if step == 4:
        accelerator.save_state("out/half")
accelerator.save_model(model, "out/final")
accelerator.end_training()
