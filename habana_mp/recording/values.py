"""What a record has of a tensor: its type and sizes, its magnitudes, and a sample of its values."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch

#: The golden ratio's fraction: its multiples are spread evenly, whatever the number of values.
_STEP = (5**0.5 - 1) / 2


def described(tensor: torch.Tensor, most: int) -> dict[str, Any]:
    """Returns the data of a tensor with at most this many of its values. Tensors of other classes than torch's own have
    only their type and sizes."""
    found: dict[str, Any] = {"dtype": "unknown", "sizes": []}
    with suppress(Exception), torch.no_grad():  # a class of tensors may raise anything
        found["dtype"] = str(tensor.dtype).removeprefix("torch.")
        found["sizes"] = list(map(int, tensor.shape))
        local = getattr(tensor, "to_local", None)  # the part of a distributed tensor that this process holds
        plain = tensor if local is None else local()
        if type(plain) in (torch.Tensor, torch.nn.Parameter):
            found |= _values(plain.detach(), most)
    return found


def _values(tensor: torch.Tensor, most: int) -> dict[str, Any]:
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.numel() or tensor.device.type == "meta":
        return {}
    wide = torch.float32 if tensor.device.type == "mps" else torch.float64
    sample = torch.take(tensor, _positions(tensor.numel(), most, tensor.device)).to(wide)
    # Values that are repeated in memory are read once.
    once = tensor[tuple(slice(1) if step == 0 else slice(None) for step in tensor.stride())]
    sizes = once.to(torch.uint8) if once.dtype == torch.bool else once.abs()
    whole = torch.cat((_largest_and_sum(sizes, wide), sample)).tolist()  # one copy from a device
    not_finite = 0
    if not math.isfinite(whole[0]):
        is_finite = torch.isfinite(sizes)
        not_finite = sizes.numel() - int(is_finite.sum())
        whole[:2] = _largest_and_sum(torch.where(is_finite, sizes, 0), wide).tolist()
    count = sizes.numel()
    return {
        "largest": whole[0],
        "mean": whole[1] / max(1, count - not_finite),
        "not_finite": not_finite / count,
        "values": whole[2:],
    }


def _largest_and_sum(sizes: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    rows = sizes.reshape(1) if not sizes.dim() else sizes
    in_rows = torch.float32 if rows.is_floating_point() and rows.dtype != torch.float64 else wide
    return torch.stack((rows.amax().to(wide), rows.sum(-1, dtype=in_rows).sum(dtype=wide)))


@lru_cache(maxsize=4096)
def _positions(count: int, most: int, device: torch.device) -> torch.Tensor:
    """Returns the positions of the sample: they depend on the number of values alone."""
    chosen = range(count) if count <= most else sorted({int((i + 0.5) * _STEP % 1 * count) for i in range(most)})
    with torch.inference_mode(mode=False):
        return torch.tensor(list(chosen), device=device)
