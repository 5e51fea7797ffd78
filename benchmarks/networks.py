"""Networks in the shapes of well-known models, with random weights, for the benchmarks of whole models.

They use only torch, and are written as such models usually are. Nothing needs to be downloaded, and little Python code
runs between torch's operations.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

#: Keys and values of one layer.
Past = tuple[torch.Tensor, torch.Tensor]


def heads(x: torch.Tensor, count: int) -> torch.Tensor:
    """Reshapes (batch, length, hidden) to (batch, heads, length, hidden / heads)."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


class RMSNorm(nn.Module):
    """An RMS norm in the dtype of its input, without the casts that Llama has in its norms."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class GatedMLP(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(hidden, intermediate, bias=False) for _ in range(2))
        self.down = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """Experts, two of which process each word, as in transformers' Mixtral."""

    def __init__(self, hidden: int, intermediate: int, experts: int) -> None:
        super().__init__()
        self.choice = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleList(GatedMLP(hidden, intermediate) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = x.flatten(0, 1)
        shares, chosen = F.softmax(self.choice(words), 1, dtype=torch.float).topk(2, -1)
        shares = (shares / shares.sum(-1, keepdim=True)).to(words.dtype)
        result = torch.zeros_like(words)
        for index, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == index)
            part = expert(words[rows]) * shares[rows, places, None]
            result.index_add_(0, rows, part.to(result.dtype))
        return result.view_as(x)


class LlamaLayer(nn.Module):
    def __init__(self, hidden: int, heads: int, intermediate: int, experts: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = RMSNorm(hidden), RMSNorm(hidden)
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.mlp = Mixture(hidden, intermediate, experts) if experts else GatedMLP(hidden, intermediate)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, past: Past | None
    ) -> tuple[torch.Tensor, Past]:
        y = self.before_attention(x)
        q, k, v = (heads(one(y), self.heads) for one in (self.q, self.k, self.v))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x)), (k, v)


class Llama(nn.Module):
    """A decoder that uses its embedding as its head."""

    def __init__(
        self, hidden: int, layers: int, heads: int, intermediate: int, words: int = 32_000, experts: int = 0
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, hidden)
        nn.init.normal_(self.embedding.weight, std=hidden**-0.5)
        self.layers = nn.ModuleList(LlamaLayer(hidden, heads, intermediate, experts) for _ in range(layers))
        self.norm = RMSNorm(hidden)
        steps = torch.arange(0, hidden // heads, 2) / (hidden // heads)
        angles = torch.outer(torch.arange(1024.0), 10_000.0**-steps).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(
        self, words: torch.Tensor, pasts: list[Past] | None = None, last: int = 0
    ) -> tuple[torch.Tensor, list[Past]]:
        """Returns scores of the next word (for the ``last`` positions, 0 for all), and the keys and values."""
        x = self.embedding(words)
        begin = 0 if pasts is None else pasts[0][0].shape[2]
        cos, sin = (table[begin : begin + words.shape[1]] for table in (self.cos, self.sin))
        kept = []
        for index, layer in enumerate(self.layers):
            x, past = layer(x, cos, sin, None if pasts is None else pasts[index])
            kept.append(past)
        return F.linear(self.norm(x[:, -last:]), self.embedding.weight), kept


class Block(nn.Module):
    """A transformer's layer, either of BERT, which normalizes after adding, or of ViT, which normalizes before
    adding."""

    def __init__(self, hidden: int, heads: int, *, norm_first: bool) -> None:
        super().__init__()
        self.heads, self.norm_first = heads, norm_first
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(one(x), self.heads) for one in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.norm_first:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Bert(nn.Module):
    """An encoder that predicts words."""

    def __init__(self, hidden: int, layers: int, heads: int, words: int = 30_522, length: int = 512) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, hidden), nn.Embedding(length, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.Sequential(*(Block(hidden, heads, norm_first=False) for _ in range(layers)))
        self.transform, self.transform_norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden)
        self.bias = nn.Parameter(torch.zeros(words))
        for embedding in (self.words, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(words) + self.positions.weight[: words.shape[1]])
        x = self.transform_norm(F.gelu(self.transform(self.layers(x))))
        return F.linear(x, self.words.weight, self.bias)


class ViT(nn.Module):
    def __init__(self, hidden: int, layers: int, heads: int, image: int, patch: int = 16, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, hidden) * 0.02)
        self.layers = nn.Sequential(*(Block(hidden, heads, norm_first=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


def conv(inside: int, outside: int, kernel: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outside))


class BasicBlock(nn.Module):
    wider = 1

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(inside, width, 3, stride), conv(width, width, 3)
        changes = stride != 1 or inside != width
        self.shortcut = conv(inside, width, 1, stride) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.conv2(F.relu(self.conv1(x))) + self.shortcut(x))


class Bottleneck(nn.Module):
    wider = 4

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (
            conv(inside, width, 1),
            conv(width, width, 3, stride),
            conv(width, 4 * width, 1),
        )
        changes = stride != 1 or inside != 4 * width
        self.shortcut = conv(inside, 4 * width, 1, stride) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.conv1(x))
        y = F.relu(self.conv2(y))
        return F.relu(self.conv3(y) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(
        self, block: type[BasicBlock | Bottleneck], counts: tuple[int, int, int, int], classes: int = 1000
    ) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        layers: list[nn.Module] = []
        inside = 64
        for width, count, stride in zip((64, 128, 256, 512), counts, (1, 2, 2, 2), strict=True):
            for index in range(count):
                layers.append(block(inside, width, stride if index == 0 else 1))
                inside = block.wider * width
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(inside, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(images))), 3, 2, 1)
        return self.head(self.layers(x).mean((2, 3)))


def resnet18() -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2))


def resnet50() -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3))
