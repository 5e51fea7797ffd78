"""zuko's continuous flow: how often its adaptive solver asks the network.

Needs zuko.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import zuko

from habana_mp import hmp
from helpers.models import Calls

FP32 = torch.float32
torch.manual_seed(0)
X = torch.randn(16, 3)


def trained(loss_of: Any) -> tuple[float, int, torch.Tensor]:
    """A loss, how often the network was asked for it and its gradient, and the gradient."""
    torch.manual_seed(0)
    flow = zuko.flows.CNF(3, hidden_features=(16,))
    asked = 0

    def count(*_: Any) -> None:
        nonlocal asked
        asked += 1

    flow.transform.ode.register_forward_hook(count)
    loss = loss_of(flow)
    loss.backward()
    return loss.item(), asked, torch.cat([one.grad.flatten() for one in flow.parameters()])


def outside(flow: torch.nn.Module) -> torch.Tensor:
    """The solver runs where the script calls it: a flow's forward gives a distribution."""
    return -flow().log_prob(X).mean()


def inside(flow: torch.nn.Module) -> torch.Tensor:
    """The solver runs in the forward of a module."""
    return Calls(lambda: outside(flow))()


@pytest.mark.parametrize(("loss_of", "within"), [(outside, None), (inside, "modules")])
def test_the_solver_asks_no_more_often_than_twice_as_in_float32(loss_of: Any, within: Any) -> None:
    expected, times, gradient = trained(loss_of)
    hmp.convert(within=within)
    loss, asked, result = trained(loss_of)
    assert asked <= 2 * times
    assert loss == pytest.approx(expected, abs=0.02)
    assert result.dtype is FP32
    torch.testing.assert_close(result, gradient, rtol=0.02, atol=0.002)
