import os

import torch
from lightning_fabric import Fabric

from habana_mp.frameworks.lightning import MixedPrecision

precision = MixedPrecision()
fabric = Fabric(accelerator="cpu", plugins=precision)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 10))
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
x, y = torch.randn(256, 64), torch.randint(0, 10, (256,))
state, losses = {"model": model, "optimizer": optimizer, "step": 0}, []
if os.path.exists("half.ckpt"):
    fabric.load("half.ckpt", state)
for step in range(state["step"], 8):
    loss = torch.nn.functional.cross_entropy(model(x[step::8]), y[step::8])
    optimizer.zero_grad()
    fabric.backward(loss)
    optimizer.step()
    losses.append(loss.item())
    if step == 3:
        fabric.save("half.ckpt", state | {"step": 4})
precision.report(fabric)
