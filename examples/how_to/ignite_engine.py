import torch
from ignite.engine import create_supervised_trainer

from habana_mp.frameworks.ignite import attach

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.cross_entropy)
attach(trainer, "out")
trainer.run(torch.utils.data.DataLoader(data, batch_size=32), max_epochs=1)
