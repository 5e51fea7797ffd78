"""The entropy models of compressai run in float32; the networks around them are lowered.

Needs compressai.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from habana_mp import hmp
from helpers.late import Late
from helpers.torchvision_here import import_torchvision

pytestmark = pytest.mark.usefixtures("quiet_libraries")
BF16, FP32 = torch.bfloat16, torch.float32
models = Late("compressai.models")
CONVERSIONS: list[dict[str, Any]] = [{}, {"within": "modules"}, {"preset": "recommended"}]


@pytest.fixture(autouse=True)
def _torchvision() -> None:
    import_torchvision()  # which compressai imports


def compressor(name: str) -> Any:
    torch.manual_seed(0)
    model = getattr(models, name)(16, 24).eval()
    with torch.no_grad():
        for part, factor in ((model.g_a[6], 200), (model.h_a[4], 30), (model.h_s[4], 4)):
            part.weight.mul_(factor)  # so that there are many symbols
    model.update(force=True)
    return model


def picture() -> torch.Tensor:
    return torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("options", CONVERSIONS)
@pytest.mark.parametrize("name", ["ScaleHyperprior", "MeanScaleHyperprior"])
def test_what_is_decompressed_is_what_the_forward_gives(name: str, options: dict[str, Any]) -> None:
    hmp.convert(**options)
    model = compressor(name)
    symbols: list[torch.Tensor] = []
    model.g_s.register_forward_pre_hook(lambda _, inputs: symbols.append(inputs[0]))
    with torch.no_grad():
        result = model(picture())
        made = model.compress(picture())
        model.decompress(made["strings"], made["shape"])
    in_forward, decompressed = symbols
    assert in_forward.dtype is decompressed.dtype is FP32
    assert in_forward.abs().max() > 2
    assert torch.equal(in_forward, decompressed)
    assert {one.dtype for one in result["likelihoods"].values()} == {FP32}


def test_the_rest_of_the_library_is_lowered() -> None:
    model = compressor("ScaleHyperprior")
    found: dict[str, torch.dtype] = {}
    for name in ("g_a", "h_a", "h_s", "g_s"):
        getattr(model, name).register_forward_hook(lambda _, __, result, name=name: found.update({name: result.dtype}))
    hmp.convert(preset="recommended")
    with torch.no_grad():
        model(picture())
    assert set(found.values()) == {BF16}


def test_an_entropy_model_trains_on_lowered_values() -> None:
    def trained() -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(2)
        model = models.FactorizedPrior(8, 12).train()
        bits = model(picture())["likelihoods"]["y"].log().sum().neg()
        bits.backward()
        return bits.detach(), model.g_a[0].weight.grad

    expected, gradient = trained()
    hmp.convert(preset="recommended")
    bits, result = trained()
    torch.testing.assert_close(bits, expected, rtol=0.02, atol=0)
    assert torch.nn.functional.cosine_similarity(result.flatten(), gradient.flatten(), dim=0) > 0.95
