import glob

import pytorch_lightning as pl
import torch

from habana_mp.frameworks.lightning import MixedPrecision


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 10))
        self.losses = []

    def training_step(self, batch, _):
        loss = torch.nn.functional.cross_entropy(self.body(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _):
        self.log("accuracy", (self.body(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


torch.manual_seed(0)
model = Classifier()
data = torch.utils.data.TensorDataset(torch.randn(128, 64), torch.randint(0, 10, (128,)))
batches = torch.utils.data.DataLoader(data, batch_size=32)
keeper = pl.callbacks.ModelCheckpoint("out", filename="{epoch}", save_top_k=-1)
trainer = pl.Trainer(
    max_epochs=2,
    accelerator="cpu",
    default_root_dir="out",
    callbacks=[keeper],
    plugins=MixedPrecision(validation={"enabled": False}),
)
trainer.fit(model, batches, batches, ckpt_path=max(glob.glob("out/*.ckpt"), default=None))
