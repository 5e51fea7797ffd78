"""torchvision's transforms, which are modules, and its models: the former are exact, the latter are lowered.

Needs torchvision. Each transform by itself: ``tests/libraries/test_transforms.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import hmp
from helpers.comparing import seeded
from helpers.torchvision_here import import_torchvision

v2 = import_torchvision("torchvision.transforms.v2")
models = import_torchvision("torchvision.models")
pytestmark = pytest.mark.usefixtures("quiet_libraries")
BF16 = torch.bfloat16
WITHINS = [None, "modules"]
torch.manual_seed(0)
IMAGES = torch.rand(4, 3, 32, 32)


def augmentation() -> Any:
    return v2.Compose(
        [
            v2.RandomRotation(30),
            v2.RandomAffine(20, translate=(0.1, 0.1), interpolation=v2.InterpolationMode.BILINEAR),
            v2.RandomPerspective(0.4, p=1.0),
            v2.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )


class Augmented(nn.Module):
    """A model that augments what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.augment = augmentation()
        self.network = models.squeezenet1_1(num_classes=3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.augment(x)
        return x, self.network(x)


@pytest.mark.parametrize("within", WITHINS)
def test_a_model_that_augments_its_images_is_lowered_after_them(within: Any) -> None:
    model = seeded(Augmented).eval()
    images, scores = seeded(lambda: model(IMAGES))
    hmp.convert(within=within)
    same, lowered = seeded(lambda: model(IMAGES))
    assert torch.equal(same, images)
    assert lowered.dtype is BF16
    torch.testing.assert_close(lowered.float(), scores, rtol=0.05, atol=0.05)
