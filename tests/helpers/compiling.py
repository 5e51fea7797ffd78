"""Finds out the abilities of torch.compile on this machine."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

HAS_COMPILER = shutil.which("c++") is not None or shutil.which("g++") is not None
#: Backends of torch.compile. Only Inductor needs a C++ compiler.
BACKENDS = ["eager", "aot_eager", *(["inductor"] if HAS_COMPILER else [])]

needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="Inductor itself needs a C++ compiler")


def enable_compiled_autograd(compiler: Any) -> Any:
    """Calls torch's own function, which has another name in older releases."""
    from torch._dynamo import compiled_autograd

    name = "_enable" if hasattr(compiled_autograd, "_enable") else "enable"
    return getattr(compiled_autograd, name)(compiler)


def skip_where_no_region_is_exported(strict: bool) -> None:
    """Skips if a strict export refuses regions of torch.autocast and of the package, as in older releases of torch."""

    class Region(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                return torch.mm(x, x)

    try:
        torch.export.export(Region(), (torch.eye(2),), strict=strict)
    except torch._export.verifier.SpecViolationError:
        pytest.skip("this torch exports no region of torch.autocast so")
