"""normflows' ActNorm, which makes its parameters of the first batch that it sees.

Needs normflows.
"""

from __future__ import annotations

from typing import Any

import normflows as nf
import pytest
import torch

from habana_mp import HmpWarning, hmp

FP32 = torch.float32
torch.manual_seed(0)
X = 2 * torch.randn(128, 2) + 1


def trained() -> tuple[float, nf.NormalizingFlow]:
    torch.manual_seed(0)
    flows = []
    for _ in range(2):
        network = nf.nets.MLP([1, 16, 16, 2], init_zeros=True)
        flows += [nf.flows.AffineCouplingBlock(network), nf.flows.Permute(2, mode="swap"), nf.flows.ActNorm(2)]
    model = nf.NormalizingFlow(nf.distributions.DiagGaussian(2), flows)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(10):
        loss = model.forward_kld(X)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item(), model


@pytest.mark.filterwarnings("ignore::habana_mp.HmpWarning")
@pytest.mark.parametrize("within", [None, "modules"])
def test_parameters_that_a_first_batch_makes_stay_float32(within: Any) -> None:
    expected, _ = trained()
    hmp.convert(within=within)
    loss, model = trained()
    assert {one.dtype for one in model.parameters()} == {FP32}
    assert loss == pytest.approx(expected, abs=0.02)


def test_parameters_that_a_first_batch_makes_lower_are_told_of() -> None:
    hmp.convert()
    with pytest.warns(HmpWarning, match=r"`\.data`"):
        trained()
