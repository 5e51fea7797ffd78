"""A LightningModule is trained with a precision plugin for HPUs, the fused optimizer, and a callback for mark_step."""

import argparse
import contextlib
import logging

import habana_frameworks.torch.core as htcore
import pytorch_lightning as pl
import torch
from habana_frameworks.torch.hpex import hmp
from habana_frameworks.torch.hpex.optimizers import FusedAdamW
from pytorch_lightning.plugins import Precision
from torch.utils.data import DataLoader, TensorDataset


class HPUPrecisionPlugin(Precision):
    """Runs steps under torch.autocast, or converts as the plugin of Lightning 2.0 does."""

    def __init__(self, precision: str, opt_level: str = "") -> None:
        self.precision = precision
        if opt_level:
            hmp.convert(opt_level=opt_level, bf16_file_path=None, fp32_file_path=None, isVerbose=False)

    @contextlib.contextmanager
    def forward_context(self):
        with torch.autocast("hpu", torch.bfloat16) if self.precision == "bf16-mixed" else contextlib.nullcontext():
            yield


class MarkSteps(pl.Callback):
    def on_after_backward(self, trainer, module) -> None:
        htcore.mark_step()

    def on_train_batch_end(self, *_) -> None:
        htcore.mark_step()


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv1d(1, 16, 3, padding=1), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Flatten(),
            torch.nn.Linear(256, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 3),
        )  # fmt: skip
        self.seen, self.dtypes, self.right = [], set(), []

    def forward(self, waves):
        return self.layers(waves[:, None])

    def training_step(self, batch, _):
        waves, kinds = batch
        scores = self(waves)
        self.dtypes.add(scores.dtype)
        loss = torch.nn.functional.cross_entropy(scores, kinds.to(torch.int32))
        self.seen.append(loss.detach())
        return loss

    def validation_step(self, batch, _):
        waves, kinds = batch
        assert waves.device.type == "hpu"
        self.right.append((self(waves).argmax(-1) == kinds).float().mean())

    def configure_optimizers(self):
        optimizer = FusedAdamW(self.parameters(), lr=3e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--hmp", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    pl.seed_everything(args.seed, verbose=False)
    kinds = torch.randint(0, 3, (640,))
    waves = torch.sin(torch.arange(16.0) * (kinds[:, None] + 1) * 0.5) + 0.7 * torch.randn(640, 16)
    parts = TensorDataset(waves[:512], kinds[:512]), TensorDataset(waves[512:], kinds[512:])
    model = Classifier()
    trainer = pl.Trainer(
        accelerator="hpu", devices=1, max_epochs=4, gradient_clip_val=1.0, callbacks=[MarkSteps()],
        plugins=[HPUPrecisionPlugin("bf16-mixed" if args.bf16 else "32-true", "O1" if args.hmp else "")],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, DataLoader(parts[0], batch_size=32), DataLoader(parts[1], batch_size=64))
    assert model.dtypes == {torch.bfloat16 if args.bf16 or args.hmp else torch.float32}, model.dtypes
    assert model.right[-1] > 0.8, model.right
    print(f"final loss {torch.stack(model.seen[-16:]).mean().item():.5f}")


if __name__ == "__main__":
    main()
