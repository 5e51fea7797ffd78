"""BoTorch's fits and searches in float32, which are line searches on values that differ in their last digits.

Needs botorch. Where values are rounded a search may not end, so each test has a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers.comparing import assert_unchanged
from helpers.each import each

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("quiet_libraries")]
torch.manual_seed(0)
X = torch.rand(8, 2)
Y = -(X - 0.4).square().sum(-1, keepdim=True)
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]])


def of_ones_own(model: Any) -> Any:
    """Returns an acquisition function written by hand."""
    from botorch.acquisition import AnalyticAcquisitionFunction
    from botorch.utils.transforms import t_batch_mode_transform

    class Own(AnalyticAcquisitionFunction):
        @t_batch_mode_transform(expected_q=1)
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            posterior = self.model.posterior(x)
            return (posterior.mean + 0.3 * posterior.variance.sqrt()).reshape(len(x))

    return Own(model)


def of_samples(model: Any) -> Any:
    from botorch.acquisition import qLogExpectedImprovement

    return qLogExpectedImprovement(model, best_f=Y.max())


def best(make: Callable[[Any], Any]) -> tuple[torch.Tensor, torch.Tensor]:
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf
    from gpytorch.mlls import ExactMarginalLogLikelihood

    torch.manual_seed(0)
    model = SingleTaskGP(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return optimize_acqf(make(model), bounds=BOUNDS, q=1, num_restarts=1, raw_samples=8)


@each("make, within", [(of_ones_own, None), (of_samples, "modules")])
def test_a_search_ends_where_plain_torchs_does(make: Callable[[Any], Any], within: Any) -> None:
    assert_unchanged(lambda: best(make), within=within, close=True)
