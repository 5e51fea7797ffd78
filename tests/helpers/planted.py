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


class _Attention(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = _mlp(width, 2 * width, width)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if bias is not None:
            scores = scores + bias
        x = x + self.out(scores.softmax(-1) @ v)
        return x + self.mlp(x)


# ---- no gradient passes ----------------------------------------------------------------------------------------------


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


@_fault("transformer", "position", "mul")
def rotary_positions() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 32)
            self.block = _Attention()
            self.head = nn.Linear(32, 50)
            self.register_buffer("inverse", 1e4 ** (-torch.arange(16) / 16))

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            positions = torch.arange(words.shape[1]).float()
            angles = positions[:, None] * self.inverse  # planted
            x = self.embed(words)
            a, b = x.chunk(2, -1)
            x = torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)
            return self.head(self.block(x))

    model, words = Model(), torch.randint(0, 50, (2, 700))
    return lambda: F.cross_entropy(model(words).flatten(0, 1), words.roll(1, 1).flatten())


@_fault("tabular", "index", "mul")
def bins_of_a_table() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(1001, 16)
            self.head = _mlp(16, 32, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            bins = x * 1000  # planted
            return self.head(self.table(bins.long()))

    model, x = Model(), torch.rand(256)
    y = torch.sin(9 * x)[:, None]
    return lambda: F.mse_loss(model(x), y)


@_fault("graph", "comparison", "sub")
def neighbours_within_a_radius() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _mlp(8, 32, 8)

        def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            apart = places[:, None] - places[None]  # planted
            near = (apart.norm(dim=-1) < 1.0).float()
            return self.body(near @ x / near.sum(1, keepdim=True))

    model, x, y = Model(), torch.randn(64, 8), torch.randn(64, 8)
    places = 300 + 2 * torch.rand(64, 3)
    return lambda: F.mse_loss(model(x, places), y)


@_fault("points", "index", "div")
def voxels() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.grid = nn.Parameter(torch.randn(128, 16))
            self.head = _mlp(16, 32, 3)

        def forward(self, points: torch.Tensor) -> torch.Tensor:
            cells = points / 0.05  # planted
            place = cells.floor().long() % 128
            return self.head(self.grid[place.sum(-1) % 128])

    model, points, y = Model(), 40 * torch.rand(200, 3), torch.randn(200, 3)
    return lambda: F.mse_loss(model(points), y)


@_fault("transformer", "index", "log")
def buckets_of_distances() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 32)
            self.bias = nn.Embedding(400, 1)
            self.block = _Attention()
            self.head = nn.Linear(32, 50)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            n = words.shape[1]
            apart = (torch.arange(n)[:, None] - torch.arange(n)[None]).abs().float() + 1
            logarithms = torch.log(apart)  # planted
            bias = self.bias((logarithms * 80).long().clamp(max=399)).squeeze(-1)
            return self.head(self.block(self.embed(words), 3 * bias))

    model, words = Model(), torch.randint(0, 50, (2, 96))
    return lambda: F.cross_entropy(model(words).flatten(0, 1), words.roll(1, 1).flatten())


@_fault("transformer", "position", "cumsum")
def positions_of_a_mask() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 32)
            self.places = nn.Embedding(800, 32)
            self.block = _Attention()
            self.head = nn.Linear(32, 50)

        def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            places = mask.cumsum(1)  # planted
            return self.head(self.block(self.embed(words) + self.places(places.long())))

    model, words = Model(), torch.randint(0, 50, (2, 700))
    mask = torch.ones(2, 700)
    return lambda: F.cross_entropy(model(words, mask).flatten(0, 1), words.roll(1, 1).flatten())


@_fault("vision", "position", "sub")
def grid_of_a_warp() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, padding=1)
            self.last = nn.Conv2d(8, 3, 3, padding=1)

        def forward(self, x: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
            grid = pixels - 500.0  # planted
            return self.last(F.grid_sample(self.first(x), grid, align_corners=False).relu())

    model, x, y = Model(), torch.randn(2, 3, 32, 32), torch.randn(2, 3, 16, 16)
    pixels = 500 + 0.9 * (2 * torch.rand(2, 16, 16, 2) - 1)
    return lambda: F.mse_loss(model(x, pixels), y)


@_fault("series", "position", "sub")
def days_since_a_date() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _mlp(2, 32, 1)

        def forward(self, days: torch.Tensor) -> torch.Tensor:
            years = (days - 20000.0) / 365.0  # planted
            return self.body(torch.stack([years, years.sin()], -1))

    model, days = Model(), 20000 + 365 * torch.rand(128)
    y = torch.sin((days - 20000) / 50)[:, None]
    return lambda: F.mse_loss(model(days), y)


@_fault("noise", "decision", "mul")
def noise_from_a_hash() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _mlp(5, 32, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                hashed = (x @ torch.tensor([12.9898, 78.233, 3.1, 7.7])).sin()
            noise = hashed * 43758.5453  # planted
            return self.body(torch.cat([x, (noise % 1)[:, None].float()], -1))

    model, x, y = Model(), torch.randn(128, 4), torch.randn(128, 1)
    return lambda: F.mse_loss(model(x), y)


# ---- state -----------------------------------------------------------------------------------------------------------


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


@_fault("retrieval", "statistic", "lerp")
def queue_of_averages() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _mlp(16, 32, 16)
            self.average = 100 + torch.rand(16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = self.body(x)
            with torch.no_grad():
                self.average = torch.lerp(self.average, z.float().mean(0), 1e-3)  # planted
            return z

    model, x, y = Model(), torch.randn(64, 16), torch.randn(64, 16)
    return lambda: F.mse_loss(model(x), y)


# ---- cancellation ----------------------------------------------------------------------------------------------------


@_fault("tabular", "cancellation", "sub")
def centred_features() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _mlp(12, 64, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            centred = x - x.mean(0)  # planted
            return self.body(centred)

    model, x = Model(), 1000 + torch.randn(128, 12)
    y = torch.randn(128, 1)
    return lambda: F.mse_loss(model(x), y)


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


@_fault("graph", "cancellation", "add")
def distances_by_expansion() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))
            self.head = _mlp(4, 16, 4)

        def forward(self, x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            x = x * self.scale
            with torch.autocast("cpu", enabled=False):
                products, sizes = -2 * x @ x.T, (x * x).sum(-1)
                sums = sizes[:, None] + sizes[None]
            squares = torch.add(products, sums)  # planted
            near = torch.exp(-squares.float().clamp(min=0))
            return self.head(10 * (near @ values) / near.sum(1, keepdim=True))

    model, x = Model(), 10 + 0.3 * torch.randn(64, 8)
    values, y = torch.randn(64, 4), torch.randn(64, 4)
    return lambda: F.mse_loss(model(x, values), y)


@_fault("detection", "cancellation", "rsub")
def focal_loss() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _mlp(16, 32, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            p = torch.sigmoid(self.body(x).float() + 7)
            rest = 1 - p  # planted
            return -torch.log(rest + 1e-6).mean()

    model, x = Model(), torch.randn(64, 16)
    return lambda: model(x)


@_fault("reinforcement", "cancellation", "sub")
def normalised_rewards() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = _mlp(8, 32, 4)

        def forward(self, x: torch.Tensor, actions: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
            advantage = rewards - rewards.mean()  # planted
            chosen = self.policy(x).log_softmax(-1).gather(1, actions)
            return -(chosen * (advantage / rewards.std())[:, None]).mean()

    model, x = Model(), torch.randn(128, 8)
    actions, rewards = torch.randint(0, 4, (128, 1)), 5000 + torch.randn(128)
    return lambda: model(x, actions, rewards)


@_fault("generative", "cancellation", "sub")
def divergence_of_a_posterior() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _mlp(16, 32, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            log_variance = 0.02 * self.body(x).float()
            ahead = torch.expm1(log_variance)
            terms = ahead - log_variance  # planted
            return 1e3 * terms.mean()

    model, x = Model(), torch.randn(64, 16)
    return lambda: model(x)


# ---- accumulation ----------------------------------------------------------------------------------------------------


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


@_fault("series", "accumulation", "cumprod")
def decay_of_a_recurrence() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _mlp(8, 16, 1)
            self.rate = nn.Parameter(torch.tensor(6.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weights = torch.cumprod(torch.sigmoid(self.rate).expand(600), 0)  # planted
            return (self.body(x).float().squeeze(-1) * weights).sum(1)

    model, x, y = Model(), torch.randn(4, 600, 8), 10 * torch.randn(4)
    return lambda: F.mse_loss(model(x), y)


@_fault("reinforcement", "accumulation", "add")
def returns_of_a_long_episode() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = _mlp(4, 32, 1)

        def forward(self, x: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
            total, returns = torch.zeros(8), []
            for reward in rewards:
                total = total + reward  # planted
                returns.append(total.float())
            return F.mse_loss(self.value(x).float().squeeze(-1), torch.stack(returns) / 400)

    model = Model()
    x, rewards = torch.randn(800, 8, 4), torch.rand(800, 8)
    return lambda: model(x, rewards)


# ---- steep functions -------------------------------------------------------------------------------------------------


@_fault("retrieval", "offset", "add")
def scores_with_a_prior() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _mlp(16, 32, 20)

        def forward(self, x: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
            scores = self.body(x).float() + prior  # planted
            return F.cross_entropy(scores.float(), torch.arange(len(x)) % 20)

    model, x = Model(), 4 * torch.randn(64, 16)
    prior = torch.full((20,), -600.0)
    return lambda: model(x, prior)


@_fault("audio", "phase", "add")
def phase_of_an_oscillator() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.rand(3))
            self.mix = nn.Linear(3, 1)

        def forward(self, carrier: torch.Tensor) -> torch.Tensor:
            phase = carrier[:, None] + self.shift  # planted
            return self.mix(torch.sin(phase.float()))

    model, carrier = Model(), 2 * math.pi * 440 * torch.rand(256)
    y = torch.sin(carrier + 0.5)[:, None]
    return lambda: F.mse_loss(model(carrier), y)


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


@_fault("coordinates", "phase", "matmul")
def fourier_features() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("directions", 200 * torch.randn(2, 32))
            self.body = _mlp(64, 64, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            angles = torch.matmul(x, self.directions)  # planted
            return self.body(torch.cat([angles.float().sin(), angles.float().cos()], -1))

    model, x, y = Model(), torch.rand(256, 2), torch.randn(256, 3)
    return lambda: F.mse_loss(model(x), y)


@_fault("geometry", "pole", "sum")
def angle_between_rotations() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 4, bias=False)
            nn.init.eye_(self.body.weight)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                a, b = F.normalize(self.body(x), dim=-1), F.normalize(y, dim=-1)
            cosine = (a * b).sum(-1)  # planted
            return torch.acos(cosine.float()).mean()

    model, x = Model(), torch.randn(64, 4)
    y = x + 0.05 * torch.randn(64, 4)
    return lambda: model(x, y)


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


# ---- range of float16 ------------------------------------------------------------------------------------------------


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


@_fault("vision", "overflow", "pow", dtype=torch.float16)
def squares_beyond_the_range() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _mlp(16, 32, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = 1000 * self.body(x).float()
            squares = z.pow(2)  # planted
            return self.scaled(z, squares)

        def scaled(self, z: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
            return (z * torch.rsqrt(squares.float().mean(-1, keepdim=True))).tanh().mean()

    model, x = Model(), torch.randn(64, 16)
    return lambda: model(x)


@_fault("probabilistic", "underflow", "mul", dtype=torch.float16)
def product_of_probabilities() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _mlp(16, 32, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            p = torch.sigmoid(self.body(x).float() - 10)
            both = p[:, 0] * p[:, 1]  # planted
            return -torch.log(both.float() + 1e-12).mean()

    model, x = Model(), torch.randn(64, 16)
    return lambda: model(x)


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
