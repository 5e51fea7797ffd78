"""A decoder of a hundred calls a step, with a fault that the caller names, and a step of it that is recorded."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from habana_mp import hmp

LAYERS, WIDTH, HEADS, WORDS, LENGTH = 4, 64, 4, 200, 32


class Attention(torch.nn.Module):
    def __init__(self, number: int, fault: str) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.scales = not (fault == "dropped scale" and number == 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            layer(x).view(batch, length, HEADS, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2)
        if self.scales:
            scores = scores * (WIDTH // HEADS) ** -0.5
        weights = scores.masked_fill(mask, -1e4).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).reshape(batch, length, WIDTH))


class Block(torch.nn.Module):
    def __init__(self, number: int, fault: str) -> None:
        super().__init__()
        self.first = torch.nn.LayerNorm(WIDTH, eps=1e-2 if fault == "another epsilon" and number == 1 else 1e-5)
        self.attention = Attention(number, fault)
        self.second = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = torch.nn.Dropout(0.1)
        self.kind = "tanh" if fault == "an older kernel" and number == 3 else "none"

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.first(x), mask))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate=self.kind))


class Decoder(torch.nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(WORDS, WIDTH), torch.nn.Embedding(LENGTH, WIDTH)
        self.blocks = torch.nn.ModuleList(Block(number, fault) for number in range(LAYERS))
        self.norm, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WORDS, bias=False)
        self.fault = fault

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        length = words.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(2 if self.fault == "a mask off by one" else 1)
        hidden = self.words(words) + self.places(torch.arange(length))
        for block in self.blocks:
            hidden = block(hidden, mask)
        hidden = self.norm(hidden)
        of = hidden.bfloat16() if self.fault == "a mean in bfloat16" else hidden
        return self.head(hidden - of.mean(-1, keepdim=True).float())


def record(folder: Path, fault: str = "", *, steps: int = 1, rows: int = 4, compiled: bool = False) -> list[float]:
    """Records steps of a training, and returns the losses."""
    torch.manual_seed(0)
    model = Decoder(fault)
    if fault == "a transposed weight":
        weight = model.blocks[2].attention.key.weight
        weight.data = weight.data.t().contiguous()
    if fault != "dropout left on":
        model.eval()
    chosen = torch.Generator().manual_seed(1 if fault == "a wrong rank's data" else 0)
    words = torch.randint(0, WORDS, (rows, LENGTH), generator=chosen)
    if compiled:
        model.compile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    with hmp.record(folder) if folder.name else contextlib.nullcontext():
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(words).flatten(0, 1).float(), words.flatten())
            loss.backward()
            with hmp.disable_casts():
                optimizer.step()
            losses.append(float(loss.detach()))
    return losses


def rows_of(folder: Path, process: str = "main") -> list[dict[str, Any]]:
    """Returns the calls of a record."""
    header, *rows = map(json.loads, (folder / f"{process}.jsonl").read_text().splitlines())
    assert (header["format"], header["version"], header["torch"]) == ("habana-mp record", 1, torch.__version__)
    return rows
