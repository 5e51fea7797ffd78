"""Small scripts with one odd line each, marked `# <- odd`, and what the report says of it.

Each script is a function that returns a step. Those with no such line have a report without a finding.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.models import Calls

Step = Callable[[], object]


@dataclass(frozen=True)
class Script:
    """A script. ``tells``: words that stand in one line of the report, together with the place of the odd line. Without
    such a line, the beginning of the report as a pattern."""

    make: Callable[[], Step]
    tells: str
    steps: int
    options: dict[str, Any]

    @property
    def place(self) -> str | None:
        lines, first = inspect.getsourcelines(self.make)
        numbers = [number for number, line in enumerate(lines, first) if line.endswith("# <- odd\n")]
        return f"{Path(__file__).name}:{numbers[0]}" if numbers else None

    def run(self) -> None:
        hmp.convert(report="lines", **self.options)
        torch.manual_seed(0)
        step = self.make()
        for _ in range(self.steps):
            step()


SCRIPTS: dict[str, Script] = {}


def _tells(words: str, *, steps: int = 10, **options: Any) -> Callable[[Callable[[], Step]], Callable[[], Step]]:
    def add(make: Callable[[], Step]) -> Callable[[], Step]:
        SCRIPTS[make.__name__] = Script(make, words, steps, options)
        return make

    return add


@_tells("first input, rule 4, made by add at ")
def attention_follows_its_query() -> Step:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.all = nn.Linear(32, 96)
            self.register_buffer("table", torch.rand(16, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            query, key, value = self.all(x).view(2, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
            query = query + self.table
            return F.scaled_dot_product_attention(query, key, value)  # <- odd

    attention = Attention()
    return lambda: attention(torch.randn(2, 16, 32)).sum().backward()


@_tells("is a loss, and runs in bf16")
def loss_in_a_function() -> Step:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(prediction, target)
            return 2 * F.mse_loss(prediction, target.to(prediction.dtype))  # <- odd

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
            prediction, target = ctx.saved_tensors
            return gradients[0] * 4 * (prediction - target.to(prediction.dtype)) / target.numel(), None

    layer = nn.Linear(32, 8)
    return lambda: Doubled.apply(layer(torch.randn(512, 32)), torch.randn(512, 8)).backward()


@_tells("gives probabilities in bf16 to log at ")
def probabilities_before_a_logarithm() -> Step:
    layer = nn.Linear(16, 1)

    def step() -> None:
        probability = torch.sigmoid(layer(torch.randn(64, 16)))  # <- odd
        (-torch.log(probability + 1e-6).mean()).backward()

    return step


@_tells("In float32: matmul in a backward")
def product_in_a_backward() -> Step:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(weight)
            return x @ weight

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
            (weight,) = ctx.saved_tensors
            return torch.matmul(gradients[0].float(), weight.T), None  # <- odd

    layer, weight = nn.Linear(32, 32), torch.randn(32, 8)
    return lambda: Product.apply(layer(torch.randn(64, 32)), weight).sum().backward()


@_tells("between matmul and matmul in bf16", steps=40)
def softmax_between_products() -> Step:
    query, key, value = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def attend(x: torch.Tensor) -> torch.Tensor:
        scores = query(x) @ key(x).transpose(-2, -1)
        weights = scores.softmax(-1)  # <- odd
        return weights @ value(x)

    attention = Calls(attend, query=query, key=key, value=value)
    return lambda: attention(torch.randn(4, 64, 32)).sum().backward()


@_tells("something computes it or writes to it", steps=20)
def weight_written_in_each_step() -> Step:
    layer, head = nn.Linear(256, 256), nn.Linear(256, 10)

    @torch.no_grad()
    def step() -> None:
        layer.weight.clamp_(-0.1, 0.1)
        x = torch.relu(layer(torch.randn(4, 256)))  # <- odd
        head(x)

    return step


# ---- nothing is odd --------------------------------------------------------------------------------------------------


@_tells(r"All 40 products ran in bf16\. bf16: \d+ calls \(.* [mµ]s\), fp32: \d+ calls", steps=20)
def nothing_odd() -> Step:
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(256, 256)), torch.arange(256) % 10).backward()
        with hmp.disable_casts():
            optimizer.step()

    return step


# A line in a list of the user's is no oddity.
@_tells(
    r"None of 10 products ran in lower precision\..*\nIn float32: linear [\d.]+ (m|µ)?s \(listed in own_fp32\.txt:3, ",
    bf16_file_path="own_bf16.txt",
    fp32_file_path="own_fp32.txt",
)
def products_in_the_users_float32_list() -> Step:
    layer = nn.Linear(32, 32)
    return lambda: layer(torch.randn(64, 32)).relu().float().sum().backward()
