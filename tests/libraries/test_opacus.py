"""Private training with Opacus: the gradients of single examples, and the step that clips them, are float32.

Needs opacus.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.late import Late

opacus = Late("opacus")

pytestmark = pytest.mark.usefixtures("quiet_libraries")
FP32 = torch.float32
torch.manual_seed(0)
X = torch.randn(64, 8)
Y = (X.sum(1) > 0).long()


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def trained_privately() -> list[float]:
    """The losses of some rounds."""
    model = small()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=16)
    model, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=loader,
        noise_multiplier=0.1,
        max_grad_norm=1.0,
    )
    losses = []
    for _ in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert {one.dtype for one in model.parameters()} == {FP32}
    return losses


@pytest.mark.parametrize("within", [None, "modules"])
def test_a_model_trains_privately_as_in_plain_torch(within: Any) -> None:
    expected = trained_privately()
    hmp.convert(within=within)
    losses = trained_privately()
    assert losses[-1] < losses[0]
    assert losses == pytest.approx(expected, abs=0.05)


def test_no_example_counts_for_more_than_the_bound() -> None:
    bound = 0.01
    hmp.convert()
    model = opacus.GradSampleModule(small(), loss_reduction="sum")
    optimizer = opacus.optimizers.DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0),
        noise_multiplier=0.0,
        max_grad_norm=bound,
        expected_batch_size=None,
        loss_reduction="sum",
    )
    for x, y in zip(X, Y, strict=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[None]), y[None])
        loss.backward()
        optimizer.step()
        norm = torch.linalg.vector_norm(torch.cat([one.grad.flatten().double() for one in model.parameters()]))
        assert bound * 0.999 < norm <= bound * (1 + 1e-6)


def test_the_private_step_is_that_of_plain_torch() -> None:
    def stepped() -> list[torch.Tensor]:
        model = opacus.GradSampleModule(small(), loss_reduction="sum")
        optimizer = opacus.optimizers.DPOptimizer(
            torch.optim.Adam(model.parameters(), lr=0.1),
            noise_multiplier=0.5,
            max_grad_norm=1.0,
            expected_batch_size=64,
        )
        for one in model.parameters():
            one.grad_sample = torch.randn(64, *one.shape)
        optimizer.step()
        return [*model.parameters(), *(one.grad for one in model.parameters())]

    expected = stepped()
    hmp.convert()
    for one, other in zip(stepped(), expected, strict=True):
        assert torch.equal(one, other)
