"""Explainers that compare a sum of attributions with a difference of outputs: nothing is lowered in them.

Needs shap and tangermeme.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from habana_mp import hmp
from helpers.late import Late

shap = Late("shap")
tangermeme = Late("tangermeme.deep_lift_shap")

pytestmark = pytest.mark.usefixtures("quiet_libraries")
CONVERSIONS: list[dict[str, Any]] = [{}, {"within": "modules"}, {"preset": "recommended"}]


def regression() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.Sigmoid(), nn.Linear(16, 2)).eval()


def explained(features: torch.Tensor, background: torch.Tensor) -> Any:
    return shap.DeepExplainer(regression(), background).shap_values(features)


@pytest.mark.parametrize("options", CONVERSIONS)
def test_deep_explainer_gives_what_it_gives_in_float32(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    background, features = 20 * torch.randn(8, 12), 20 * torch.randn(3, 12)
    expected = explained(features, background)
    hmp.convert(**options)
    np.testing.assert_array_equal(explained(features, background), expected)


def test_deep_explainer_takes_features_that_were_lowered() -> None:
    torch.manual_seed(1)
    encoder = nn.Linear(6, 12)
    hmp.convert()
    with torch.no_grad():
        background, features = encoder(20 * torch.randn(8, 6)), encoder(20 * torch.randn(3, 6))
    assert features.dtype is torch.bfloat16
    result = explained(features, background)
    hmp.restore()
    np.testing.assert_array_equal(result, explained(features.float(), background.float()))


def test_an_explained_model_is_lowered_again_afterwards() -> None:
    hmp.convert()
    model = regression()
    shap.DeepExplainer(model, torch.randn(4, 12)).shap_values(torch.randn(1, 12))
    assert model(torch.randn(2, 12)).dtype is torch.bfloat16


class Profile(nn.Module):
    """Reads one-hot sequences."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv1d(4, 16, 7), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 34, 1))

    def forward(self, x: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        values = 50 * self.layers(x)
        return values if shift is None else values + shift


def sequences() -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    letters = torch.randint(4, (3, 40), generator=generator)
    return nn.functional.one_hot(letters, 4).transpose(1, 2).float()


def attributed(*given: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # "Convergence deltas too high"
        return tangermeme.deep_lift_shap(
            Profile(), sequences(), args=given or None, n_shuffles=4, random_state=0, device="cpu"
        )


@pytest.mark.parametrize("options", CONVERSIONS)
def test_deep_lift_attributions_are_those_of_float32(options: dict[str, Any]) -> None:
    expected = attributed()
    hmp.convert(**options)
    assert torch.equal(attributed(), expected)


def test_deep_lift_takes_other_inputs_that_were_lowered() -> None:
    hmp.convert()
    shift = torch.randn(3, 2) @ torch.randn(2, 1)
    assert shift.dtype is torch.bfloat16
    result = attributed(shift)
    hmp.restore()
    assert torch.equal(result, attributed(shift))
