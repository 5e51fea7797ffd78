"""Imports torchvision with a torch for which its extension was not built.

The wheel's extension loads with one build of torch only. Without the extension, ``import torchvision`` needs operators
that are not defined, and raises an error. The same happens in every library that imports torchvision if it is
installed. So torchvision is installed in its own folder (see the Makefile), and this module defines the operators by
name. The transforms and most models call none of them.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch

_FOLDER = str(Path(sys.prefix) / "torchvision")
#: The operators for which torchvision registers fake kernels, whether or not its extension was loaded.
_ASKED_FOR = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_libraries: list[torch.library.Library] = []


def import_torchvision(name: str = "torchvision") -> Any:
    """Returns torchvision, or a module of it."""
    if _FOLDER not in sys.path:
        sys.path.append(_FOLDER)
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "torchvision::" not in str(error) or _libraries:
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")
    _libraries.append(library)  # its definitions exist as long as this object
    for operator, schema in _ASKED_FOR.items():
        library.define(operator + schema)
    return importlib.import_module(name)
