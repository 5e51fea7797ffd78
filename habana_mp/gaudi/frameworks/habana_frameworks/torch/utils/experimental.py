"""``habana_frameworks.torch.utils.experimental``."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeVar

import torch

from .. import hpu

__all__ = [
    "_get_device_type",
    "_is_fp16_supported",
    "const_shape_dataloader",
    "data_dynamicity",
    "detect_recompilation_auto_model",
    "hpu",
    "synDeviceType",
]

_Module = TypeVar("_Module", bound=torch.nn.Module)
_T = TypeVar("_T")


class synDeviceType(enum.Enum):  # noqa: N801  the name that scripts use
    """The types of Gaudi devices."""

    synDeviceGaudi = "synDeviceGaudi"  # noqa: N815 (its names are the package's)
    synDeviceGaudi2 = "synDeviceGaudi2"  # noqa: N815 (its names are the package's)
    synDeviceGaudi3 = "synDeviceGaudi3"  # noqa: N815 (its names are the package's)
    synDeviceInvalid = "synDeviceInvalid"  # noqa: N815 (its names are the package's)


def _get_device_type() -> synDeviceType:
    """Returns ``synDeviceInvalid``: this is no Gaudi. Scripts choose settings for a type of Gaudi by it."""
    return synDeviceType.synDeviceInvalid


def _is_fp16_supported() -> bool:
    """Returns True: torch computes in float16 on every device."""
    return True


def detect_recompilation_auto_model(model: _Module, *_: Any, **__: Any) -> _Module:
    """Returns the model with a method ``analyse_dynamicity``. On Gaudi it finds the modules whose graphs are compiled
    again and again; here nothing is compiled, and the method prints so."""
    model.analyse_dynamicity = _analyse_dynamicity  # type: ignore[assignment]  # a method of this one model
    return model


def _analyse_dynamicity(*_: Any, **__: Any) -> None:
    print("habana_mp's stand-in for Gaudi compiles no graphs, so no module was compiled again")


def data_dynamicity(batches: Iterable[Any], *_: Any, **__: Any) -> Counter[Any]:
    """Prints how many batches have the same shapes. Returns the number of batches by their shapes."""
    shapes = Counter(_shapes_of(batch) for batch in batches)
    print(f"Number of unique shapes: {len(shapes)}, in {shapes.total()} batches")
    for shape, count in shapes.most_common(5):
        print(f"{count:8} {shape}")
    return shapes


def const_shape_dataloader(batches: _T, *_: Any, **__: Any) -> _T:
    """Returns the loader unchanged. On Gaudi it repeats one batch, to measure a training without recompilations."""
    return batches


def _shapes_of(value: Any) -> Any:
    """Returns the shapes of the tensors in a batch; for anything else its type."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, dict):
        return tuple((name, _shapes_of(one)) for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_shapes_of, value))
    return type(value).__name__
