"""An encoder of six layers, of which two steps of training are reported line by line.

``habana-mp run --report report.html --detail lines examples/encoder.py`` makes the page of the README.
"""

from __future__ import annotations

import torch
from torch import nn


class Layer(nn.Module):
    """Attention and a feed-forward network, each followed by a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (
            layer(x).view(batch, length, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) * (width // self.heads) ** -0.5
        context = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = self.norm_1(x + self.out(context))
        return self.norm_2(x + self.down(nn.functional.gelu(self.up(x))))


class Encoder(nn.Module):
    def __init__(self, width: int = 256, layers: int = 6, words: int = 1000, classes: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(128, width)
        self.layers = nn.ModuleList(Layer(width, 4) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def main() -> None:
    torch.manual_seed(0)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters())
    words, targets = torch.randint(0, 1000, (16, 128)), torch.randint(0, 4, (16,))
    for _ in range(2):
        loss = nn.functional.cross_entropy(model(words), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
