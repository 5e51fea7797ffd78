"""torchvision's transforms prepare data: nothing is cast in them (rule 11), its models are lowered. Needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from habana_mp import hmp
from helpers.comparing import assert_same, assert_unchanged, seeded
from helpers.each import each
from helpers.models import Calls
from helpers.torchvision_here import import_torchvision

v1 = import_torchvision("torchvision.transforms")
v2 = import_torchvision("torchvision.transforms.v2")
models = import_torchvision("torchvision.models")
pytestmark = pytest.mark.usefixtures("quiet_libraries")
BF16, FP32 = torch.bfloat16, torch.float32


_PIXELS = torch.rand(3, 24, 20, generator=torch.Generator().manual_seed(1))
_BYTES = (255 * _PIXELS).to(torch.uint8)
_MATRIX, _MEAN = torch.eye(1440) + 0.01, torch.full((1440,), 0.1)


def image(dtype: torch.dtype = FP32) -> torch.Tensor:
    return (_PIXELS if dtype is FP32 else _BYTES).clone()


#: Of both versions, by the same name.
TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "RandomRotation": lambda t: t.RandomRotation(30),
    "RandomAffine": lambda t: t.RandomAffine(30, translate=(0.1, 0.1), scale=(0.8, 1.2), shear=5),
    "RandomPerspective": lambda t: t.RandomPerspective(0.5, p=1.0),
    "ElasticTransform": lambda t: t.ElasticTransform(20.0, sigma=1.0),
    "RandomResizedCrop": lambda t: t.RandomResizedCrop(12),
    "Resize": lambda t: t.Resize(9),
    "ColorJitter": lambda t: t.ColorJitter(0.5, 0.5, 0.5, 0.3),
    "GaussianBlur": lambda t: t.GaussianBlur(3),
    "RandomErasing": lambda t: t.RandomErasing(p=1.0, value="random"),
    "Normalize": lambda t: t.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]),
    "LinearTransformation": lambda t: t.LinearTransformation(_MATRIX, _MEAN),
    "Compose": lambda t: t.Compose([t.Lambda(lambda x: x * 0.1 + x), t.RandomRotation(30), t.CenterCrop(8)]),
    "RandomApply": lambda t: t.RandomApply([t.ColorJitter(0.4), t.Pad(3)], p=1.0),
}


@each("version", [v1, v2])
@each("name", TRANSFORMS)
def test_a_transform_gives_the_image_that_plain_torch_gives(name: str, version: Any) -> None:
    transform = TRANSFORMS[name](version)
    expected = seeded(lambda: transform(image()))
    hmp.convert()
    assert_same(seeded(lambda: transform(image())), expected)
    # made after it was converted too
    again = TRANSFORMS[name](version)
    assert_same(seeded(lambda: again(image())), expected)


OF_INTEGERS: dict[str, Callable[[], Any]] = {
    "RandomRotation": lambda: v2.RandomRotation(30, interpolation=v2.InterpolationMode.BILINEAR),
    "ToDtype": lambda: v2.ToDtype(FP32, scale=True),
    "AutoAugment": v2.AutoAugment,
    "RandAugment": v1.RandAugment,
    "AugMix": v2.AugMix,
    "RandomPhotometricDistort": lambda: v2.RandomPhotometricDistort(p=1.0),
}


@each("name", OF_INTEGERS)
def test_a_transform_of_whole_numbers_gives_what_plain_torch_gives(name: str) -> None:
    transform = OF_INTEGERS[name]()
    assert_unchanged(lambda: transform(image(torch.uint8)))


CORNERS = [[0, 0], [19, 0], [19, 23], [0, 23]]
FUNCTIONS: dict[str, Callable[[Any], torch.Tensor]] = {
    "rotate": lambda f: f.rotate(image(), 20.0, v2.InterpolationMode.BILINEAR),
    "affine": lambda f: f.affine(image(), 20.0, [1, 2], 1.1, [3.0]),
    "perspective": lambda f: f.perspective(image(), CORNERS, [[2, 1], [18, 0], [17, 23], [1, 20]]),
    "gaussian_blur": lambda f: f.gaussian_blur(image(), [3, 3]),
    "adjust_hue": lambda f: f.adjust_hue(image(), 0.2),
    "to_tensor": lambda f: f.to_tensor(np.full((4, 4, 3), 100, np.uint8)),
}


@each("version", [v1, v2])
@each("name", FUNCTIONS)
def test_a_function_of_images_gives_what_plain_torch_gives(name: str, version: Any) -> None:
    assert_unchanged(lambda: FUNCTIONS[name](version.functional))


@pytest.mark.parametrize("within", [None, "modules"])
def test_a_model_that_augments_its_images_is_lowered_after_them(within: Any) -> None:
    augment = v2.Compose([*(TRANSFORMS[name](v2) for name in ("RandomAffine", "RandomPerspective", "Normalize"))])
    network = seeded(lambda: models.squeezenet1_1(num_classes=3))
    model = Calls(lambda x: (x := augment(x), network(x)), augment=augment, network=network).eval()
    pictures = torch.rand(4, 3, 32, 32)
    images, scores = seeded(lambda: model(pictures))
    hmp.convert(within=within)
    same, lowered = seeded(lambda: model(pictures))
    assert torch.equal(same, images)
    assert lowered.dtype is BF16
    torch.testing.assert_close(lowered.float(), scores, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", ["MixUp", "CutMix"])
def test_mixed_images_and_labels_are_those_of_plain_torch(name: str) -> None:
    transform = getattr(v2, name)(num_classes=5)
    images, labels = torch.rand(4, 3, 8, 8), torch.arange(4)
    assert_unchanged(lambda: transform(images, labels))


def test_a_transform_of_ones_own_is_in_float32_where_torchvision_calls_it() -> None:
    class Halved(v2.Transform):  # type: ignore[misc, name-defined]  # imported by name
        def transform(self, value: torch.Tensor, params: dict[str, Any]) -> torch.Tensor:
            return value * 0.5

    hmp.convert()
    assert Halved()(image()).dtype is FP32
    assert (image() * 0.5).dtype is BF16


def test_a_transform_is_exact_in_compiled_code() -> None:
    def prepared(x: torch.Tensor) -> torch.Tensor:
        return v2.functional.normalize(v2.functional.rotate(x, 20.0), [0.4] * 3, [0.3] * 3) * 0.5

    expected = v2.functional.normalize(v2.functional.rotate(image(), 20.0), [0.4] * 3, [0.3] * 3)
    hmp.convert()
    torch._dynamo.reset()
    result = torch.compile(prepared, backend="aot_eager")(image())
    torch._dynamo.reset()
    assert result.dtype is BF16  # the product after it is cast
    assert torch.equal(result, expected.bfloat16() * 0.5)
