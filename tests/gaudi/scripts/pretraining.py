"""A small encoder learns to fill in masked words, with gradients of several batches added up: in the style of Gaudi's
BERT folder."""

import argparse
import tempfile

import habana_frameworks.torch.core as htcore
import habana_frameworks.torch.hpu as hthpu
import torch
from habana_frameworks.torch.hpex import hmp
from torch import nn

WORDS, LENGTH, MASK = 24, 12, 0


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.places = nn.Embedding(LENGTH, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        places = torch.arange(words.shape[1], dtype=torch.long, device=words.device)
        return self.head(self.norm(self.layers(self.words(words) + self.places(places))))


def sentences(count: int, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Each word is the one before, and a step that is the sentence's own."""
    first = torch.randint(0, WORDS - 1, (count, 1), generator=generator, device=device)
    step = torch.randint(1, 4, (count, 1), generator=generator, device=device)
    words = (first + step * torch.arange(LENGTH, device=device)) % (WORDS - 1) + 1
    hidden = torch.rand(words.shape, generator=generator, device=device) < 0.15
    return words.masked_fill(hidden, MASK), words.masked_fill(~hidden, -100)


def main(args: argparse.Namespace) -> None:
    device = torch.device("hpu", 0)
    hthpu.disable_dynamic_shape()
    if args.use_hmp:
        with tempfile.NamedTemporaryFile("w") as lower, tempfile.NamedTemporaryFile("w") as full:
            lower.write("addmm\nbmm\nlinear\nmatmul\nmm\n"), lower.flush()
            full.write("cross_entropy\nlayer_norm\nlog_softmax\nsoftmax\n"), full.flush()
            hmp.convert(opt_level="O1", bf16_file_path=lower.name, fp32_file_path=full.name, isVerbose=False)
    torch.manual_seed(args.seed)
    generator = torch.Generator(device="hpu").manual_seed(args.seed)
    model = Encoder()
    model.to(device)
    groups = [
        {"params": [p for n, p in model.named_parameters() if "norm" not in n], "weight_decay": 0.01},
        {"params": [p for n, p in model.named_parameters() if "norm" in n], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    losses = []
    for step in range(args.steps):
        for _ in range(args.accumulation):
            words, labels = sentences(32, generator, device)
            loss = criterion(model(words).view(-1, WORDS), labels.view(-1)) / args.accumulation
            loss.backward()
            htcore.mark_step()
        with hmp.disable_casts():
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        htcore.mark_step()
        losses.append(loss.item() * args.accumulation)
        if step % 20 == 0:
            print(f"step {step} loss {losses[-1]:.4f} memory {hthpu.memory.max_memory_allocated() // 2**20} MB")
    hthpu.memory.reset_peak_memory_stats()
    print(f"final loss {sum(losses[-10:]) / 10:.5f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--use_hmp", action="store_true")
    main(parser.parse_args())
