"""Small networks of kinds that networks.py lacks. They use only torch, get one tensor, and return scores."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 10


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with activations between them."""
    layers: list[nn.Module] = []
    for inside, outside in pairwise(widths):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Recurrent(nn.Module):
    """One of torch's recurrent networks."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers, self.head = kind(64, 256, 2, batch_first=True), nn.Linear(256, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)[0][:, -1])


class CellInALoop(nn.Module):
    """A recurrent network written step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(64, 128), nn.Linear(128, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], 128)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


class Waves(nn.Module):
    """Gated convolutions of sound. The reach of each is twice the reach of the one before."""

    def __init__(self, width: int = 64, layers: int = 8) -> None:
        super().__init__()
        self.first, self.head = nn.Conv1d(1, width, 1), nn.Conv1d(width, CLASSES, 1)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, padding=2**i, dilation=2**i) for i in range(layers))
        self.mixed = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for gated, mixed in zip(self.gated, self.mixed, strict=True):
            left, right = gated(x).chunk(2, 1)
            x = x + mixed(left.tanh() * right.sigmoid())
        return self.head(x).mean(-1)


def _twice(inside: int, outside: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inside, outside):
        layers += [nn.Conv2d(width, outside, 3, padding=1), nn.GroupNorm(8, outside), nn.SiLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = _twice(3, width), _twice(width, 2 * width), _twice(2 * width, 4 * width)
        self.grow1, self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), _twice(4 * width, 2 * width)
        self.grow2, self.up2 = nn.ConvTranspose2d(2 * width, width, 2, 2), _twice(2 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def pixels(self, images: torch.Tensor) -> torch.Tensor:
        """Returns the scores of each pixel."""
        a = self.down1(images)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        b = self.up1(torch.cat((self.grow1(c), b), 1))
        a = self.up2(torch.cat((self.grow2(b), a), 1))
        return self.head(a)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.pixels(images).mean((2, 3))


class Encoder(nn.Module):
    """torch's own encoder layers."""

    def __init__(self, hidden: int = 256) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(hidden, 8, 4 * hidden, dropout=0.0, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 4), nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean(1))


class EinsumAttention(nn.Module):
    """Attention that writes all its products as ``einsum``."""

    def __init__(self, hidden: int = 256, heads: int = 8, layers: int = 4) -> None:
        super().__init__()
        inside = hidden // heads
        self.given = nn.ParameterList(torch.randn(3, hidden, heads, inside) * hidden**-0.5 for _ in range(layers))
        self.back = nn.ParameterList(torch.randn(heads, inside, hidden) * hidden**-0.5 for _ in range(layers))
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for given, back in zip(self.given, self.back, strict=True):
            q, k, v = torch.einsum("bnd,tdhe->tbhne", x, given)
            scores = torch.einsum("bhne,bhme->bhnm", q, k) * q.shape[-1] ** -0.5
            x = x + torch.einsum("bhne,hed->bnd", torch.einsum("bhnm,bhme->bhne", scores.softmax(-1), v), back)
        return self.head(x.mean(1))


class Recommender(nn.Module):
    """Tables of categories, and the products of all pairs."""

    def __init__(self, tables: int = 26, width: int = 32, size: int = 10_000) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, width) for _ in range(tables))
        self.numbers, self.top = mlp(13, 128, width), mlp(width + tables * (tables + 1) // 2, 256, CLASSES)
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes 13 numbers, and one for each table."""
        numbers = self.numbers(x[:, :13])
        chosen = (x[:, 13:].double() * 1000).long() % self.size  # in float64, which no list lowers
        all_of_them = torch.stack([numbers, *(one(row) for one, row in zip(self.tables, chosen.T, strict=True))], 1)
        products = torch.bmm(all_of_them, all_of_them.transpose(1, 2))
        rows, columns = torch.tril_indices(len(self.tables) + 1, len(self.tables) + 1, -1)
        return self.top(torch.cat((numbers, products[:, rows, columns]), 1))


class Graph(nn.Module):
    """Layers that add up neighbours; the edges are random."""

    def __init__(self, nodes: int = 2000, edges: int = 10_000) -> None:
        super().__init__()
        self.layers = nn.ModuleList((nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, CLASSES)))
        self.register_buffer("edges", torch.randint(0, nodes, (2, edges)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begin, end = self.edges
        for layer in self.layers:
            x = layer(x.relu())
            x = torch.zeros_like(x).index_add_(0, end, x[begin]) / 5
        return x


class Experts(nn.Module):
    """Eight small networks; each row chooses two of them."""

    def __init__(self, width: int = 128, experts: int = 8) -> None:
        super().__init__()
        self.choice, self.head = nn.Linear(width, experts), nn.Linear(width, CLASSES)
        self.experts = nn.ModuleList(mlp(width, 4 * width, width) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares, chosen = self.choice(x).softmax(-1).topk(2, -1)
        result = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == index)
            part = expert(x[rows]) * shares[rows, places, None]
            result = result.index_add(0, rows, part.to(result.dtype))
        return self.head(result)


def volumes() -> nn.Sequential:
    """Convolutions of videos."""
    return nn.Sequential(
        *(nn.Conv3d(3, 32, 3, padding=1), nn.BatchNorm3d(32), nn.ReLU(), nn.MaxPool3d(2)),
        *(nn.Conv3d(32, 64, 3, padding=1), nn.BatchNorm3d(64), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()),
        nn.Linear(64, CLASSES),
    )


class Generator(nn.Module):
    """Makes images from noise, by transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.ConvTranspose2d(64, 256, 4), nn.BatchNorm2d(256), nn.ReLU()]
        for width in (256, 128):
            layers += [nn.ConvTranspose2d(width, width // 2, 4, 2, 1), nn.BatchNorm2d(width // 2), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(64, CLASSES, 4, 2, 1), nn.Tanh())

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.layers(noise[:, :, None, None]).mean((2, 3))
