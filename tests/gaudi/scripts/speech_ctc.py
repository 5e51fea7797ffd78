"""Words are heard in waves, by a small wav2vec with Gaudi's CTC loss: the length of each wave is different."""

import argparse
import contextlib

import habana_frameworks.torch.core as htcore
import habana_frameworks.torch.hpu as hthpu
import torch
from habana_frameworks.torch.hpex.kernels import CTCLoss
from habana_frameworks.torch.hpex.optimizers import FusedAdamW
from torch import nn

LETTERS, STEP = 5, 8  # letter 0 is the blank one


def speech(count: int, seed: int):
    """Returns waves, their masks, and their letters with -100 behind the last one."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 5, (count,), generator=generator)
    letters = torch.randint(1, LETTERS, (count, 4), generator=generator)
    time = torch.arange(3.0 * STEP)
    waves = torch.sin(time * letters[..., None] * 0.5) * (time < 2.5 * STEP)
    waves = waves.flatten(1) + 0.05 * torch.randn(count, 12 * STEP, generator=generator)
    mask = torch.arange(12 * STEP)[None] < 3 * STEP * lengths[:, None]
    labels = letters.masked_fill(torch.arange(4)[None] >= lengths[:, None], -100)
    return waves * mask, mask, labels


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 32, 8, stride=4, padding=2), nn.GELU(), nn.Conv1d(32, 32, 4, stride=2, padding=1), nn.GELU()
        )
        self.norm = nn.LayerNorm(32)
        self.place = nn.utils.parametrizations.weight_norm(nn.Conv1d(32, 32, 5, padding=2, groups=4), dim=2)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, LETTERS)

    def forward(self, waves, mask):
        x = self.norm(self.features(waves[:, None]).transpose(1, 2))
        frames = mask.sum(-1) // STEP
        ignored = torch.arange(x.shape[1], device=x.device)[None] >= frames[:, None]
        x = x.masked_fill(ignored[..., None], 0)
        x = x + nn.functional.gelu(self.place(x.transpose(1, 2))).transpose(1, 2)
        return self.head(self.encoder(x, src_key_padding_mask=ignored)), frames


def loss_of(logits, frames, labels):
    log_probs = nn.functional.log_softmax(logits, dim=-1, dtype=torch.float32).transpose(0, 1)
    known = labels >= 0
    return CTCLoss.apply(log_probs, labels, frames, known.sum(-1), 0, "mean", True)


def heard(row, frames: int) -> list:
    best = torch.unique_consecutive(row[:frames]).tolist()
    return [letter for letter in best if letter]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    hthpu.enable_dynamic_shape()
    device = torch.device("hpu", hthpu.current_device())
    waves, mask, labels = (one.to(device) for one in speech(96, 1))
    model = Recogniser().to(device)
    optimizer = FusedAdamW(model.parameters(), lr=3e-3, eps=1e-8, weight_decay=0.0)
    region = torch.autocast("hpu", torch.bfloat16) if args.autocast else contextlib.nullcontext()
    for step in range(120):
        part = slice(32 * (step % 3), 32 * (step % 3 + 1))
        longest = int(mask[part].sum(-1).max())
        with region:
            logits, frames = model(waves[part, :longest], mask[part, :longest])
        loss = loss_of(logits, frames, labels[part])
        loss.backward()
        htcore.mark_step()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        htcore.mark_step()
    model.eval()
    with torch.no_grad(), region:
        logits, frames = model(waves, mask)
    expected = [[letter for letter in row if letter > 0] for row in labels.tolist()]
    found = [heard(row, int(count)) for row, count in zip(logits.argmax(-1).cpu(), frames, strict=True)]
    wrong = sum(one != other for one, other in zip(found, expected, strict=True)) / len(found)
    print(f"wrong {wrong:.3f} final loss {loss_of(logits.float(), frames, labels).item():.5f}")


if __name__ == "__main__":
    main()
