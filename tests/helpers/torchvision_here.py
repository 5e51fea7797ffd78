"""torchvision beside a torch that its extension was not built for.

The wheel's extension loads beside one build of torch only. Without it ``import torchvision`` asks torch for operators
that nobody has defined, and raises, in every library that imports torchvision where it finds it. So it lies in a folder
of its own (see the Makefile), and the operators are defined here, by name: the transforms and most models call none of
them.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch

_FOLDER = str(Path(sys.prefix) / "torchvision")
#: What torchvision registers fake kernels for, whether its extension was loaded or not.
_ASKED_FOR = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_libraries: list[torch.library.Library] = []


def import_torchvision(name: str = "torchvision") -> Any:
    """torchvision, or a module of it."""
    if _FOLDER not in sys.path:
        sys.path.append(_FOLDER)
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "torchvision::" not in str(error) or _libraries:
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")
    _libraries.append(library)  # what it defines goes when it does
    for operator, schema in _ASKED_FOR.items():
        library.define(operator + schema)
    return importlib.import_module(name)
