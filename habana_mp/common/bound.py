"""The core looks up what it needs of torch."""

from __future__ import annotations

from functools import cache

import torch

from habana_mp import _core


@cache
def bind_torch() -> None:
    """Lets the core look up what it needs of torch. It tries this on samples, so torch must record gradients and make
    float32 tensors meanwhile, whatever mode the caller's code has switched on."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            _core.bind_torch()
    finally:
        torch.set_default_dtype(dtype)
