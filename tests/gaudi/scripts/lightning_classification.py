"""Points are classified by a LightningModule."""

import sys

import pytorch_lightning as pl
import torch
from habana_frameworks.torch.hpex import hmp
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
        self.seen = []

    def training_step(self, batch, _):
        points, kinds = batch
        assert points.device.type == "hpu"
        loss = torch.nn.functional.cross_entropy(self.layers(points), kinds)
        self.seen.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    if "--hmp" in sys.argv:
        hmp.convert("O2", None, None, False)
    pl.seed_everything(1, verbose=False)
    kinds = torch.randint(0, 3, (512,))
    points = torch.eye(3).repeat(1, 3)[:, :8][kinds] + 0.5 * torch.randn(512, 8)
    model = Classifier()
    trainer = pl.Trainer(accelerator="hpu", devices=1, max_epochs=2, barebones=True)
    trainer.fit(model, DataLoader(TensorDataset(points, kinds), batch_size=32))
    print(f"final loss {sum(model.seen[-8:]) / 8:.5f}")
