"""Gaussian processes of GPyTorch: their own arithmetic is float32, networks in front of them are lowered.

Needs gpytorch.
"""

from __future__ import annotations

from typing import Any

import gpytorch
import pytest
import torch
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_unchanged
from helpers.each import each

BF16, FP32 = torch.bfloat16, torch.float32
WITHINS = [None, "modules"]

torch.manual_seed(0)
X = torch.linspace(0, 1, 40)
Y = torch.sin(6 * X) + 0.1 * torch.randn(40)
NEW = torch.linspace(0.01, 0.99, 21)


def normal(model: Any, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
    return gpytorch.distributions.MultivariateNormal(model.mean_module(x), model.covar_module(x))


class Exact(gpytorch.models.ExactGP):
    def __init__(self, kernel: gpytorch.kernels.Kernel, x: torch.Tensor = X) -> None:
        super().__init__(x, Y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel)

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return normal(self, x)


class Deep(Exact):
    """A kernel on what a network makes of its input."""

    def __init__(self) -> None:
        super().__init__(gpytorch.kernels.RBFKernel(), X[:, None])
        self.network = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return normal(self, self.network(x))


class Own(gpytorch.kernels.Kernel):
    """A kernel written by hand."""

    has_lengthscale = True

    def forward(self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, **_: Any) -> torch.Tensor:
        if diag:
            return torch.exp(-0.5 * ((x1 - x2) * (1 / self.lengthscale)).square().sum(-1))
        between = (x1[..., :, None, :] - x2[..., None, :, :]) * (1 / self.lengthscale[..., None])
        return torch.exp(-0.5 * (between * between).sum(-1))


def trained(model: Any, likelihood: Any, bound: Any, x: torch.Tensor = X) -> list[torch.Tensor]:
    """The loss after some steps, and what is predicted then."""
    optimizer = torch.optim.Adam({*model.parameters(), *likelihood.parameters()}, lr=0.05)
    model.train(), likelihood.train()
    for _ in range(8):
        optimizer.zero_grad()
        loss = -bound(model(x), Y)
        loss.backward()
        optimizer.step()
    model.eval(), likelihood.eval()
    with torch.no_grad():
        predicted = likelihood(model(NEW.view(-1, *x.shape[1:])))
        low, high = predicted.confidence_region()
    return [loss.detach(), predicted.mean, predicted.variance, low, high]


def exact(kernel: type[gpytorch.kernels.Kernel]) -> list[torch.Tensor]:
    model = Exact(kernel())
    return trained(model, model.likelihood, gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model))


@each("within", WITHINS)
@each("kernel", [gpytorch.kernels.RBFKernel, Own])
def test_an_exact_process_is_that_of_plain_torch(kernel: type[gpytorch.kernels.Kernel], within: Any) -> None:
    assert_unchanged(lambda: exact(kernel), within=within)


@pytest.mark.parametrize("within", WITHINS)
def test_the_network_of_a_deep_kernel_is_lowered_and_its_kernel_is_not(within: Any) -> None:
    def run() -> tuple[list[torch.Tensor], set[torch.dtype]]:
        torch.manual_seed(0)
        model, seen = Deep(), set()
        model.network.register_forward_hook(lambda _, __, result: seen.add(result.dtype))
        likelihood = model.likelihood
        bound = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        return trained(model, likelihood, bound, X[:, None]), seen

    expected, _ = run()
    hmp.convert(within=within)
    results, seen = run()
    assert seen == {BF16}
    for result, one in zip(results, expected, strict=True):
        assert result.dtype is FP32
        torch.testing.assert_close(result, one, rtol=0.05, atol=0.05)


def test_what_is_predicted_from_lowered_inputs_is_float32() -> None:
    model = Exact(gpytorch.kernels.RBFKernel()).eval()
    hmp.convert()
    with torch.no_grad():
        predicted = model(torch.relu(NEW))
    assert predicted.mean.dtype is predicted.variance.dtype is FP32
