"""The core looks up what it needs of torch."""

from __future__ import annotations

from functools import cache

import torch

from habana_mp import _core

#: Products that torch.autocast casts on a device, as torch's dispatcher names them.
_PRODUCTS = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "conv2d", "conv_transpose2d.input")


@cache
def bind_torch() -> None:
    """Lets the core look up what it needs of torch. It tries this on samples, so torch must record gradients and make
    float32 tensors meanwhile, whatever mode the caller's code has switched on."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            _core.bind_torch()
            _core.set_autocast_of_accelerator(_autocast_of)
    finally:
        torch.set_default_dtype(dtype)


def _autocast_of(tensor: torch.Tensor) -> int | None:
    """Returns the number of the type of the tensor's device if torch.autocast casts products there, -1 if it does not,
    None if the device is not torch's accelerator."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or tensor.device.type != accelerator.type:
        return None
    key = f"Autocast{torch._C._dispatch_key_for_device(accelerator.type)}"
    if not all(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key) for name in _PRODUCTS):
        return -1
    return torch.accelerator.current_stream(tensor.device).device_type
