import torch

from habana_mp import hmp

hmp.convert(preset="recommended")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 10))
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(256, 64), torch.randint(0, 10, (256,))
losses = []
for step in range(8):
    loss = torch.nn.functional.cross_entropy(compiled(x[step::8]), y[step::8])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
torch.save(model.state_dict(), "model.pt")
