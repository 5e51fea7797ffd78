import torch

from habana_mp import hmp

hmp.convert(preset="recommended", report="lines")
# In the next cell:
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 10))
loss = torch.nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.randint(0, 10, (32,)))
loss.backward()
# In the last cell:
report = hmp.report()
