"""Results on devices, whose values are checked there. The answer is read later, so that no call waits for a device."""

from __future__ import annotations

import torch

from habana_mp.reporting.judging import Call

#: For each device whether a NaN was seen there: the flag, and its copy for the host, which may be under way.
_flags: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}


@torch.no_grad()
def note(call: Call) -> bool:
    """Checks the results of a call on their devices. Returns whether one of an earlier call had a NaN."""
    seen = False
    for result in call.results():
        device, is_cuda = result.device, result.is_cuda
        is_captured = is_cuda and torch.cuda.is_current_stream_capturing()
        if device.type in ("cpu", "meta") or not result.is_floating_point() or is_captured:
            continue
        if device not in _flags:
            flag = torch.zeros((), dtype=torch.bool, device=device)
            _flags[device] = flag, torch.zeros((), dtype=torch.bool, pin_memory=is_cuda)
        flag, copy = _flags[device]
        flag.logical_or_(torch.isnan(result.detach()).any())
        if bool(copy):
            seen = True
            del _flags[device]
        else:
            copy.copy_(flag, non_blocking=is_cuda)
    return seen
