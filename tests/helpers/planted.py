"""Steps with a planted fault: one line that must not run in lower precision, marked with ``# planted``.

Each fault is a function that returns a step. The marked line runs in lower precision because ``lower`` names its
operation. With this line in float32 the step has the same result as in float32.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Step = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Fault:
    """A planted fault. ``family``: the kind of model. ``kind``: the kind of fault."""

    name: str
    family: str
    kind: str
    make: Callable[[], Step]
    #: Operations that are lowered in addition to those of the recommended lists.
    lower: tuple[str, ...]
    dtype: torch.dtype = torch.bfloat16

    @property
    def line(self) -> int:
        lines, first = inspect.getsourcelines(self.make)
        (found,) = [number for number, text in enumerate(lines, first) if "# planted" in text]
        return found

    def convert_arguments(self) -> dict[str, Any]:
        return {
            "preset": "recommended",
            "within": "everywhere",
            "dtype": self.dtype,
            "rules": dict.fromkeys(self.lower, "lower"),
        }


FAULTS: list[Fault] = []


def _fault(
    family: str, kind: str, *lower: str, dtype: torch.dtype = torch.bfloat16
) -> Callable[[Callable[[], Step]], Callable[[], Step]]:
    def add(make: Callable[[], Step]) -> Callable[[], Step]:
        FAULTS.append(Fault(make.__name__, family, kind, make, lower, dtype))
        return make

    return add


def _mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


@_fault("diffusion", "position", "mul")
def timesteps() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("frequencies", torch.exp(-math.log(1e4) * torch.arange(16) / 16))
            self.time = _mlp(32, 64, 64)
            self.body = _mlp(64, 128, 64)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            angles = t[:, None].float() * self.frequencies  # planted
            return self.body(x + self.time(torch.cat([angles.sin(), angles.cos()], -1)))

    model, x, noise = Model(), torch.randn(64, 64), torch.randn(64, 64)
    t = torch.randint(0, 1000, (64,))
    return lambda: F.mse_loss(model(x, t), noise)


@_fault("vision", "statistic", "add")
def running_mean_that_stalls() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.register_buffer("center", 10 + torch.rand(8))
            self.head = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = self.conv(x).mean((2, 3))
            with torch.no_grad():
                new = 0.0001 * (found.float().mean(0) - self.center)
                self.center = self.center + new  # planted
            return self.head(found)

    model, x = Model(), torch.randn(16, 3, 8, 8)
    y = torch.randint(0, 4, (16,))
    return lambda: F.cross_entropy(model(x), y)


@_fault("vision", "cancellation", "sub")
def variance_by_two_means() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _mlp(12, 64, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            squares, square = (x * x).mean(1), x.mean(1) ** 2
            variance = squares - square  # planted
            return self.body((x - x.mean(1, keepdim=True)) * torch.rsqrt(variance.abs() + 1e-3)[:, None])

    model, x = Model(), 30 + torch.randn(64, 12)
    y = torch.randint(0, 4, (64,))
    return lambda: F.cross_entropy(model(x), y)


@_fault("physics", "accumulation", "add")
def small_steps_of_an_integrator() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = _mlp(4, 32, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(20):
                move = 1e-3 * self.field(x).float()
                x = x + move  # planted
            return x

    model, x = Model(), 1 + torch.rand(32, 4)
    y = x + 0.02 * torch.randn(32, 4)
    return lambda: 1e4 * F.mse_loss(model(x).float(), y)


@_fault("events", "exponent", "mul")
def decay_between_events() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rate", torch.tensor([0.1, 0.11, 0.12, 0.13]))
            self.head = _mlp(4, 16, 1)

        def forward(self, gaps: torch.Tensor) -> torch.Tensor:
            exponents = gaps[:, None] * self.rate  # planted
            return self.head(torch.exp(4000 * self.rate - exponents.float()))

    model = Model()
    gaps, y = 4000 + 20 * torch.rand(128), torch.randn(128, 1)
    return lambda: F.mse_loss(model(gaps).float(), y)


@_fault("distillation", "convergence", "softmax")
def distillation_near_convergence() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _mlp(16, 64, 50)

        def forward(self, x: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
            student = self.body(x).float().log_softmax(-1)
            target = teacher.softmax(-1)  # planted
            return 1e4 * F.kl_div(student, target.float(), reduction="batchmean")

    model, x = Model(), torch.randn(64, 16)
    with torch.no_grad():
        teacher = model.body(x).bfloat16().float() + 1e-2 * torch.randn(64, 50)
    return lambda: model(x, teacher)


@_fault("language", "overflow", "exp", dtype=torch.float16)
def logarithm_of_sums() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _mlp(16, 32, 20)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            logits = 60 * self.body(x).float()
            parts = torch.exp(logits)  # planted
            return (torch.log(parts.float().sum(-1)) - logits.gather(1, y).squeeze(1)).mean()

    model, x, y = Model(), torch.randn(64, 16), torch.randint(0, 20, (64, 1))
    return lambda: model(x, y)


@_fault("retrieval", "underflow", "add", dtype=torch.float16)
def epsilon_that_vanishes() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(16, 8, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = self.body(x).float()
            sizes = z.square().sum(-1, keepdim=True) + 1e-8  # planted
            return (z * sizes.float().rsqrt()).tanh().mean()

    model, x = Model(), torch.randn(64, 16)
    x[3] = 0
    return lambda: model(x)
