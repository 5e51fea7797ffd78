"""A small transformer that learns a small language, in FP32 and in mixed precision, side by side.

``python examples/language_model.py``, or with ``--attention softmax`` to write the attention out step by step.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

#: What is compared with FP32: the arguments of ``hmp.convert``.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "default lists": {},
    "ResNet50 preset": {"preset": "resnet50"},
    "O2": {"opt_level": "O2"},
}

CONTEXT = 48


def make_text(sentences: int) -> str:
    """The language: the same text each time."""
    chance = random.Random(7)
    people = ["the miller", "a sailor", "my sister", "the old king", "nobody", "our neighbour"]
    actions = ["sells", "remembers", "paints", "looks for", "forgets", "carries home"]
    things = ["a lantern", "seven apples", "the north wind", "a letter", "his boat", "every bell"]
    endings = ["", " at night", " in the rain", " before supper", " without a word"]
    lines = (
        f"{chance.choice(people)} {chance.choice(actions)} {chance.choice(things)}{chance.choice(endings)}."
        for _ in range(sentences)
    )
    return " ".join(lines)


class Block(nn.Module):
    """Causal attention and a feed-forward network, each after a layer norm."""

    def __init__(self, width: int, heads: int, attention: str) -> None:
        super().__init__()
        self.heads = heads
        self.attention = attention
        self.norm_1 = nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.to_qkv(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.attention == "sdpa":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(future, torch.finfo(torch.float32).min)
            mixed = scores.softmax(-1) @ v
        x = x + self.to_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_2(x))


class LanguageModel(nn.Module):
    """Characters in, a score for each next character out."""

    def __init__(self, characters: int, attention: str, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads, attention) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.characters(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def loss_of(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    scores = model(windows[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())


def train(seed: int, steps: int, attention: str, batch: int = 16) -> float:
    """The loss on text that the model has not seen."""
    torch.manual_seed(seed)
    text = make_text(1200)
    alphabet = sorted(set(text))
    tokens = torch.tensor([alphabet.index(character) for character in text])
    windows = tokens.unfold(0, CONTEXT + 1, CONTEXT // 4)
    training, test = windows[: len(windows) * 9 // 10], windows[len(windows) * 9 // 10 + 4 :]

    model = LanguageModel(len(alphabet), attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for _ in range(steps):
        loss = loss_of(model, training[torch.randint(len(training), (batch,))])
        optimizer.zero_grad()
        loss.backward()
        with hmp.disable_casts():
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        return loss_of(model, test).item()


def train_seeds(seeds: int, steps: int, attention: str) -> float:
    return sum(train(seed, steps, attention) for seed in range(seeds)) / seeds


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=1, help="how many trainings each figure is the mean of")
    parser.add_argument("--attention", choices=["sdpa", "softmax"], default="sdpa")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # The model is too small for more.

    def losses() -> float:
        return train_seeds(options.seeds, options.steps, options.attention)

    results = {"FP32": losses()}
    reports: dict[str, hmp.Report] = {}
    for name, configuration in CONFIGURATIONS.items():
        hmp.reset_report()
        hmp.convert(**configuration)
        try:
            results[name] = losses()
        finally:
            hmp.restore()
        reports[name] = hmp.report(show=False)

    print(f"{'':<17}  test loss  of FP32's")
    for name, loss in results.items():
        print(f"{name:<17}  {loss:9.4f}  {loss / results['FP32']:9.2%}")
    print("\nWhat ran in which precision under the default lists:\n")
    print(reports["default lists"])
    return results


if __name__ == "__main__":
    main()
