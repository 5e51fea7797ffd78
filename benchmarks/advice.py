"""Follows each advice of a report and of a diagnosis in twenty scripts, and measures the error of the results.

    python benchmarks/advice.py [--only NAME,...] [--texts]

Ten scripts are healthy, and ten are harmed by the lower precision. Each runs in float64, then in mixed precision with a
report by lines and a diagnosis, and then with the `.rule` of each finding of the report, and with those of the
diagnosis together. An error is the largest of the results (loss, outputs, gradients), relative to that in float64. The
advice holds if none makes the results worse, each that says what is wrong mends a harmed result by half, and each
harmed script has such an advice. The exit status is 1 if it does not hold.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

#: Brings a tensor or a module into the precision of the run.
To = Callable[[Any], Any]
Step = Callable[[], tuple[torch.Tensor, ...]]

#: An error that is not worth an advice, and how much larger than before an error may be.
HEALTHY, WORSE = 0.02, 1.25
#: Findings on costs. They claim no better result.
ON_COSTS = ("ping-pong", "product in float32", "too small")


@dataclass(frozen=True)
class Script:
    name: str
    is_harmed: bool
    make: Callable[[To], Step]
    options: dict[str, Any] = field(default_factory=dict)
    #: The number of times that the step runs for the report.
    steps: int = 3


SCRIPTS: list[Script] = []


def script(*, harmed: bool, steps: int = 3, **options: Any) -> Callable[[Callable[[To], Step]], Callable[[To], Step]]:
    def add(make: Callable[[To], Step]) -> Callable[[To], Step]:
        SCRIPTS.append(Script(make.__name__, harmed, make, {"preset": "recommended", **options}, steps))
        return make

    return add


class Calls(nn.Module):
    """A module whose forward is a function of itself and of the inputs."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


def training(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Step:
    """A step that gives the loss and all gradients as one tensor."""

    def step() -> tuple[torch.Tensor, ...]:
        model.zero_grad()
        found = loss()
        gradients = torch.autograd.grad(found, list(model.parameters()), retain_graph=True)
        return found, torch.cat([one.flatten() for one in gradients])

    return step


def evaluation(function: Callable[[], torch.Tensor]) -> Step:
    @torch.no_grad()
    def step() -> tuple[torch.Tensor, ...]:
        return (function(),)

    return step


# ---- healthy --------------------------------------------------------------------------------------------------------


@script(harmed=False)
def classifier(to: To) -> Step:
    model, x, y = to(mlp(64, 256, 256, 10)), to(torch.randn(128, 64)), torch.randint(0, 10, (128,))
    return training(model, lambda: F.cross_entropy(model(x), y))


@script(harmed=False)
def regression_with_a_difference(to: To) -> Step:
    model, x, y = to(mlp(16, 128, 1)), to(torch.randn(256, 16)), to(torch.randn(256, 1))
    return training(model, lambda: (model(x) - y).square().mean())


@script(harmed=False)
def residual_network_with_norms(to: To) -> Step:
    block = [Calls(lambda self, x: x + self.f(F.layer_norm(x, (64,))), f=mlp(64, 128, 64)) for _ in range(4)]
    model, x, y = to(nn.Sequential(*block, nn.Linear(64, 4))), to(torch.randn(64, 64)), to(torch.randn(64, 4))
    return training(model, lambda: F.mse_loss(model(x), y))


@script(harmed=False)
def transformer(to: To) -> Step:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model, x = to(nn.TransformerEncoder(layer, 2)), to(torch.randn(8, 32, 64))
    return training(model, lambda: model(x).square().mean())


@script(harmed=False)
def ten_convolutions_once_each(to: To) -> Step:
    layers = [nn.Conv1d(16, 16, 5, padding=2, groups=2) for _ in range(10)]
    model, x = to(nn.Sequential(*layers)), to(torch.randn(4, 16, 256))
    return evaluation(lambda: model(x))


@script(harmed=False)
def normalised_by_hand(to: To) -> Step:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h = (h - h.mean(0)) / (h.var(0) + 1e-3).sqrt()
        return self.last(F.relu(h))

    model = to(Calls(forward, first=nn.Linear(32, 64), last=nn.Linear(64, 8)))
    x, y = to(torch.randn(256, 32)), to(torch.randn(256, 8))
    return training(model, lambda: F.mse_loss(model(x), y))


@script(harmed=False)
def attention_by_hand(to: To) -> Step:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / 8 + torch.full((32, 32), -1e9, dtype=x.dtype).triu(1)
        shares = (scores - scores.amax(-1, keepdim=True)).exp()
        return self.out(shares / shares.sum(-1, keepdim=True) @ v)

    model, x = to(Calls(forward, qkv=nn.Linear(64, 192), out=nn.Linear(64, 64))), to(torch.randn(8, 32, 64))
    return training(model, lambda: model(x).square().mean())


@script(harmed=False)
def variational_autoencoder(to: To) -> Step:
    def forward(self: Any, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        mean, log = self.encoder(x).chunk(2, -1)
        found = self.decoder(mean + (log / 2).exp() * noise)
        return (found - x).square().mean() + (mean.square() + log.exp() - 1 - log).mean()

    model = to(Calls(forward, encoder=mlp(32, 64, 16), decoder=mlp(8, 64, 32)))
    x, noise = to(torch.randn(128, 32)), to(torch.randn(128, 8))
    return training(model, lambda: model(x, noise))


@script(harmed=False)
def solution_of_a_sound_system(to: To) -> Step:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.linalg.solve(self.metric, self.first(x).mT).mT)

    model = Calls(forward, first=nn.Linear(32, 32), last=nn.Linear(32, 4))
    mixed = torch.randn(32, 32)
    model.register_buffer("metric", mixed @ mixed.t() / 32 + torch.eye(32))
    model, x, y = to(model), to(torch.randn(64, 32)), to(torch.randn(64, 4))
    return training(model, lambda: F.mse_loss(model(x), y))


@script(harmed=False)
def trained_until_it_fits(to: To) -> Step:
    model, x = to(mlp(8, 64, 1)), to(torch.randn(128, 8))
    y = (x[:, :1] * 2).tanh()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return evaluation(lambda: model(x))


# ---- harmed ---------------------------------------------------------------------------------------------------------


@script(harmed=True, steps=1)
def covariances_of_some_batches(to: To) -> Step:
    def covariance(x: torch.Tensor) -> torch.Tensor:
        total = x.sum(0, keepdim=True)
        return (x.t() @ x - total.t() @ total / len(x)) / (len(x) - 1)

    model = Calls(lambda self, a, b: (covariance(a) - covariance(b)).square().sum() / 4096)
    pairs = [(to(torch.randn(256, 32) + 10 * (i < 3)), to(torch.randn(256, 32) + 10 * (i < 3))) for i in range(66)]
    return evaluation(lambda: torch.stack([model(a, b) for a, b in pairs]))


@script(harmed=True)
def distances_to_centres(to: To) -> Step:
    def forward(_: Any, x: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
        return x.square().sum(-1)[:, None] + centres.square().sum(-1) - 2 * x @ centres.t()

    x = 8 + torch.randn(64, 16)
    model, points, centres = Calls(forward), to(x), to(x + 0.3 * torch.randn(64, 16))
    return evaluation(lambda: model(points, centres).diagonal())


@script(harmed=True, preset="hmp-default")
def distances_under_lists_of_arithmetic(to: To) -> Step:
    def forward(_: Any, x: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
        return x.square().sum(-1)[:, None] + centres.square().sum(-1) - 2 * (x @ centres.t())

    x = 8 + torch.randn(64, 16)
    model, points, centres = Calls(forward), to(x), to(x + 0.3 * torch.randn(64, 16))
    return evaluation(lambda: model(points, centres).diagonal().float())


@script(harmed=True)
def a_ridge_below_the_rounding(to: To) -> Step:
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky_ex(x @ x.t() + 1e-3 * torch.eye(len(x), dtype=x.dtype))[0].diagonal()

    model, x = Calls(forward), to(torch.randn(48, 32))
    return evaluation(lambda: model(x))


@script(harmed=True)
def mutants_beside_the_original(to: To) -> Step:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.gelu(self.conv(x)).flatten(1))

    model = to(Calls(forward, conv=nn.Conv1d(4, 64, 9), head=nn.Linear(64 * 392, 2)))
    model.head.bias.data += 40
    x = F.one_hot(torch.randint(0, 4, (1, 400)), 4).mT.float()
    mutants = x.repeat(64, 1, 1)
    for i in range(64):
        mutants[i, :, 5 * i + 40] = mutants[i, :, 5 * i + 40].roll(1)
    x, mutants = to(x), to(mutants)
    return evaluation(lambda: model(mutants) - model(x))


@script(harmed=True, steps=1)
def occlusions_one_by_one(to: To) -> Step:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)).mean(1)).squeeze(-1)

    model = to(Calls(forward, first=nn.Linear(8, 128), last=nn.Linear(128, 1)))
    x = to(torch.randn(1, 300, 8))

    def without(i: int) -> torch.Tensor:
        changed = x.clone()
        changed[:, i] = 0
        return model(changed)

    return evaluation(lambda: torch.cat([model(x) - without(i) for i in range(40)]))


@script(harmed=True)
def solution_in_a_module(to: To) -> Step:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        found = self.features(x)
        system = torch.bmm(found.mT, found) + 1e-2 * torch.eye(16, dtype=found.dtype)
        return torch.linalg.solve(system, torch.bmm(found.mT, self.targets(x)))

    solver = Calls(forward, features=nn.Linear(16, 16, bias=False), targets=nn.Linear(16, 4))
    model = to(
        Calls(
            lambda self, x: self.last(self.solver(self.first(x))),
            first=nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16)),
            solver=solver,
            last=nn.Linear(4, 2),
        )
    )
    x, y = to(torch.randn(8, 40, 8)), to(torch.randn(8, 16, 2))
    return training(model, lambda: F.mse_loss(model(x), y))


@script(harmed=True)
def factors_of_a_kernel(to: To) -> Step:
    def forward(self: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = self.features(x)
        factors, pivots = torch.linalg.lu_factor(
            (found @ found.t() + 0.1 * torch.eye(len(x), dtype=x.dtype)).to(x.dtype)
        )
        return torch.linalg.lu_solve(factors, pivots, y)

    model = to(Calls(lambda self, x, y: self.gp(x, y).square().mean(), gp=Calls(forward, features=mlp(8, 32, 16))))
    x, y = to(torch.randn(64, 8)), to(torch.randn(64, 1))
    return training(model, lambda: model(x, y))


@script(harmed=True, preset="hmp-default")
def angles_of_positions(to: To) -> Step:
    def forward(self: Any, steps: torch.Tensor) -> torch.Tensor:
        angles = steps[:, None] * self.frequencies
        return self.body(torch.cat([angles.sin(), angles.cos()], -1)).float()

    model = Calls(forward, body=mlp(64, 64, 8))
    model.register_buffer("frequencies", 0.9 ** torch.arange(32))
    model, steps = to(model), to(torch.arange(1000.0))
    return training(model, lambda: F.mse_loss(model(steps), torch.ones_like(steps)[:, None].expand(-1, 8)))


@script(harmed=True)
def probabilities_into_a_logarithm(to: To) -> Step:
    model, x = to(Calls(lambda self, x: self.last(x).sigmoid(), last=nn.Linear(32, 1))), 12 * torch.randn(256, 32)
    x, y = to(x), to(torch.rand(256, 1).round())
    return training(model, lambda: F.binary_cross_entropy(model(x).clamp(1e-4, 1 - 1e-4), y))


# ---- the runs -------------------------------------------------------------------------------------------------------


def made(one: Script, dtype: torch.dtype) -> Step:
    torch.manual_seed(0)
    return one.make(lambda given: given.to(dtype))


def results(one: Script, dtype: torch.dtype = torch.float32, **options: Any) -> list[torch.Tensor]:
    """The results of one step, in float64 without this package unless options for `convert` are given."""
    if options:
        hmp.convert(**options)
    try:
        return [part.detach().double() for part in made(one, dtype)()]
    finally:
        hmp.restore()


def error(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    shares = [float((a - b).norm() / b.norm().clamp(min=1e-30)) for a, b in zip(found, exact, strict=True)]
    return max(one if math.isfinite(one) else math.inf for one in shares)


def advices(one: Script) -> Iterator[tuple[str, str, dict[str, str], str]]:
    """The findings of a report and of a diagnosis: whose they are, their kind, rule and text."""
    hmp.convert(**one.options, report="lines")
    try:
        hmp.reset_report()
        step = made(one, torch.float32)
        for _ in range(one.steps):
            step()
        report = hmp.report(show=False)
        for finding in report.findings:
            yield "report", finding.kind, dict(finding.rule), finding.text
        # The lines that a diagnosis names are needed together.
        found = hmp.diagnose(step)
        rules = {line: precision for finding in found.findings for line, precision in finding.rule.items()}
        if found.findings:
            yield "diagnosis", ", ".join(one.kind for one in found.findings), rules, str(found)
    finally:
        hmp.restore()


def follow(one: Script, *, texts: bool) -> bool:
    """Follows the advice in one script. Returns False if it does not hold."""
    exact = results(one, torch.float64)
    before = error(results(one, **one.options), exact)
    is_mended, holds = False, True
    print(f"{one.name} ({'harmed' if one.is_harmed else 'healthy'}): {before:.2%}", flush=True)
    for source, kind, rule, text in list(advices(one)):
        if texts:
            print(f"    {text}")
        if not rule:
            print(f"    {source}, {kind}: no rule", flush=True)
            continue
        after = error(results(one, **{**one.options, "rules": rule}), exact)
        worse = after > max(WORSE * before, HEALTHY)
        mends = after <= max(before / 2, HEALTHY)
        broken = worse or (not mends and kind not in ON_COSTS)
        verdict = (
            "worse" if worse else "does not mend" if broken else "mends" if mends and before > HEALTHY else "harmless"
        )
        print(f"    {source}, {kind}: {rule} -> {after:.2%}, {verdict}", flush=True)
        is_mended = is_mended or (mends and not worse)
        holds = holds and not broken
    if one.is_harmed and before <= HEALTHY:
        print("    it is not harmed")
        return False
    if one.is_harmed and not is_mended:
        print("    nothing mends it")
        return False
    return holds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="NAME,...", help="these scripts")
    parser.add_argument("--texts", action="store_true", help="print the findings in words")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chosen = [one for one in SCRIPTS if not options.only or one.name in options.only.split(",")]
    broken = [one.name for one in chosen if not follow(one, texts=options.texts)]
    print(f"{len(chosen)} scripts, the advice does not hold in {len(broken)}: {', '.join(broken) or 'none'}")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
