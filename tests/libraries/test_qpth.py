"""The solver of qpth: its solutions hold the constraints as in float32.

Needs qpth.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import hmp
from helpers.late import Late

qpth = Late("qpth.qp")

FP32 = torch.float32


@pytest.fixture(autouse=True)
def _other_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """qpth imports cvxpy for a solver that is not used here."""
    monkeypatch.setitem(sys.modules, "cvxpy", ModuleType("cvxpy"))


class Allocation(nn.Module):
    """Chooses shares of several goods, which add up to 1, by a quadratic program."""

    def __init__(self, solve: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.costs = nn.Linear(10, 6)
        self.root = nn.Parameter(torch.eye(6) + 0.1 * torch.randn(6, 6))
        self.solve = solve

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with hmp.disable_casts():
            risk = self.root @ self.root.t() + 1e-3 * torch.eye(6)
        limits, bounds = torch.cat([-torch.eye(6), torch.eye(6)]), torch.tensor(6 * [0.0] + 6 * [0.4])
        solve = self.solve or qpth.QPFunction(verbose=-1)
        return solve(risk, self.costs(x), limits, bounds, torch.ones(1, 6), torch.ones(1))


def solved(model: Allocation) -> tuple[torch.Tensor, torch.Tensor]:
    """The shares, and the gradient of what they cost."""
    torch.manual_seed(1)
    shares = model(torch.randn(5, 10))
    (shares * torch.arange(6.0)).sum().backward()
    return shares.detach(), model.root.grad


@pytest.mark.parametrize("options", [{}, {"within": "modules"}, {"preset": "recommended"}])
@pytest.mark.parametrize("is_made_before", [False, True])
def test_shares_hold_their_constraints_as_in_float32(options: dict[str, Any], is_made_before: bool) -> None:
    expected, gradient = solved(Allocation())
    solve = qpth.QPFunction(verbose=-1) if is_made_before else None
    hmp.convert(**options)
    shares, result = solved(Allocation(solve))
    assert shares.dtype is result.dtype is FP32
    assert (shares.sum(1) - 1).abs().max() < 1e-5
    assert shares.min() > -1e-5
    assert shares.max() < 0.4 + 1e-5
    # The costs, a product, are lowered.
    torch.testing.assert_close(shares, expected, rtol=0, atol=0.02)
    torch.testing.assert_close(result, gradient, rtol=0.1, atol=0.05)


def program() -> list[torch.Tensor]:
    torch.manual_seed(3)
    root = torch.randn(3, 4, 4)
    return [root @ root.mT + torch.eye(4), torch.randn(3, 4), torch.randn(3, 5, 4), torch.rand(3, 5) + 0.1]


def result_and_gradients(given: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [one.clone().requires_grad_() for one in given]
    result = qpth.QPFunction(verbose=-1)(*leaves, torch.tensor([]), torch.tensor([]))
    result.sum().backward()
    return [result.detach(), *(one.grad for one in leaves)]


def test_the_same_program_has_the_same_solution_and_gradients() -> None:
    given = program()
    expected = result_and_gradients(given)
    hmp.convert()
    assert all(map(torch.equal, result_and_gradients(given), expected))


def test_a_program_that_was_lowered_is_solved_in_float32() -> None:
    given = program()
    hmp.convert()
    lowered = [one * 0.9 for one in given]
    assert {one.dtype for one in lowered} == {torch.bfloat16}
    result, *gradients = result_and_gradients(lowered)
    hmp.restore()
    expected, *exact = result_and_gradients([one.float() for one in lowered])
    assert torch.equal(result, expected)
    assert all(torch.equal(one, other.bfloat16()) for one, other in zip(gradients, exact, strict=True))
