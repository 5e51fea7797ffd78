"""A classifier of sequences, with the arguments, the autocast and the memory figures of a trainer for Gaudi."""

import argparse
import contextlib
import os
import random
from dataclasses import dataclass, field

import habana_frameworks.torch.core as htcore
import torch
from torch.utils.data import DataLoader, Dataset


@dataclass
class GaudiConfig:
    use_fused_adam: bool = True
    use_fused_clip_norm: bool = True
    use_torch_autocast: bool = False
    autocast_bf16_ops: list = field(default_factory=list)


class Reviews(Dataset):
    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(1, 20, (count, 10), generator=generator)
        self.labels = (self.words.float().mean(1) > 10).long()

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.words[index], "labels": self.labels[index]}


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = torch.nn.Embedding(20, 32), torch.nn.LayerNorm(32)
        self.layer, self.head = torch.nn.GRU(32, 32, batch_first=True), torch.nn.Linear(32, 2)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(self, input_ids, labels=None):
        hidden, _ = self.layer(self.norm(self.words(input_ids)))
        logits = self.head(hidden.mean(1))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class GaudiTrainer:
    def __init__(self, model, config: GaudiConfig, data: Dataset, lr: float) -> None:
        self.config, self.data = config, data
        self.model = model.to("hpu") if model.device.type != "hpu" else model
        if config.use_fused_adam:
            from habana_frameworks.torch.hpex.optimizers import FusedAdamW

            self.optimizer = FusedAdamW(self.grouped(), lr=lr, betas=(0.9, 0.999), eps=1e-8)
        if config.use_fused_clip_norm:
            from habana_frameworks.torch.hpex.normalization import FusedClipNorm

            self.clip = FusedClipNorm(self.model.parameters(), 1.0)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: max(0.1, 1 - step / 200))
        self.lazy = htcore.is_lazy()

    def grouped(self) -> list:
        decayed = [one for name, one in self.model.named_parameters() if "norm" not in name and "bias" not in name]
        others = [one for name, one in self.model.named_parameters() if "norm" in name or "bias" in name]
        return [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]

    def autocast_smart_context_manager(self, cache_enabled: bool = True):
        if self.config.use_torch_autocast:
            return torch.autocast(device_type="hpu", dtype=torch.bfloat16, enabled=True)
        return contextlib.nullcontext()

    def training_step(self, inputs) -> torch.Tensor:
        self.model.train()
        inputs = {key: value.to(self.model.device, non_blocking=True) for key, value in inputs.items()}
        with self.autocast_smart_context_manager():
            loss = self.model(**inputs)["loss"]
        (loss / 2).backward()  # two batches for each step
        return loss.detach() / 2

    def train(self, epochs: int) -> float:
        torch.hpu.reset_peak_memory_stats()
        total = torch.tensor(0.0).to("hpu")
        for _ in range(epochs):
            loader = DataLoader(self.data, batch_size=16, pin_memory=True, pin_memory_device="hpu", drop_last=True)
            total.zero_()
            for step, inputs in enumerate(loader):
                total += self.training_step(inputs)
                htcore.mark_step()
                if step % 2:
                    self.clip.clip_norm(self.model.parameters())
                    self.optimizer.step()
                    self.scheduler.step()
                    self.model.zero_grad(set_to_none=True)
                    htcore.mark_step()
        return 2 * total.item() / len(loader)


def to_gb(size: float) -> float:
    return round(size / 1024**3, 2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed), torch.manual_seed(args.seed)
    if torch.hpu.is_available():
        torch.hpu.manual_seed_all(args.seed)
    states = {"cpu": torch.random.get_rng_state(), "hpu": torch.hpu.random.get_rng_state_all()}
    trainer = GaudiTrainer(Classifier(), GaudiConfig(use_torch_autocast=args.bf16), Reviews(512, 1), 1e-2)
    torch.random.set_rng_state(states["cpu"]), torch.hpu.random.set_rng_state_all(states["hpu"])
    loss = trainer.train(6)
    stats = torch.hpu.memory_stats()
    memory = {name: to_gb(stats[key]) for name, key in (("now", "InUse"), ("most", "MaxInUse"), ("all", "Limit"))}
    assert 0 < torch.hpu.memory_allocated() <= torch.hpu.max_memory_allocated()
    assert memory["now"] <= memory["most"] <= memory["all"]
    torch.save({"model": trainer.model.state_dict(), "rng": states}, "checkpoint.pt")
    trainer.model.load_state_dict(torch.load("checkpoint.pt", map_location="hpu", weights_only=True)["model"])
    os.remove("checkpoint.pt")
    print(f"final loss {loss:.5f} on {torch.hpu.get_device_name(torch.hpu.current_device())}, memory {memory}")


if __name__ == "__main__":
    main()
