"""Compares a call that was lowered with the same call in float32."""

from __future__ import annotations

import math

import torch

from habana_mp import _core
from habana_mp.diagnosis.exact import LOWER, is_lower
from habana_mp.diagnosis.sites import Site

#: Two runs are compared by this many values of each result.
_SAMPLES = 128


def sample(tensor: torch.Tensor, most: int = _SAMPLES) -> torch.Tensor | None:
    """Returns a copy of values that are spread over the whole tensor, in an order that does not depend on its layout.
    Returns None if they cannot be read one by one."""
    try:
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // most)
        if step > 1 and step % 2 == 0:
            step -= 1  # an even step could take the same column of each row
        chosen = flat[::step][:most]
        return chosen.float().clone() if chosen.is_floating_point() else chosen.clone()
    except (RuntimeError, NotImplementedError, TypeError):  # a class of tensors without these operations
        return None


def note_inputs(site: Site, inputs: list[torch.Tensor]) -> None:
    """Stores the range of the inputs, from samples."""
    for one in inputs:
        values = sample(one) if one.is_floating_point() else None
        if values is None or not values.numel():
            continue
        sizes = values.abs()
        sizes = sizes[(sizes > 0) & torch.isfinite(sizes)]
        if sizes.numel():
            site.smallest_input = min(site.smallest_input, float(sizes.min()))
            site.largest_input = max(site.largest_input, float(sizes.max()))


def compare_floats(
    site: Site, low: torch.Tensor, exact: torch.Tensor, inputs: list[torch.Tensor], number: int
) -> torch.Tensor | None:
    """Adds a lowered result and the exact one to the sums of a site. Returns the local error if there is any."""
    low = low.detach()
    error = low - exact
    size = float(torch.linalg.vector_norm(exact))
    sum_of_errors = float(torch.linalg.vector_norm(error))
    site.values += low.numel()
    site.dtypes.add(str(low.dtype).removeprefix("torch."))
    if not math.isfinite(sum_of_errors) or not math.isfinite(size):
        finite = torch.isfinite(error)
        _note_birth(site, low, exact, inputs, number)
        error = torch.where(finite, error, 0.0)
        size = float(torch.linalg.vector_norm(torch.where(torch.isfinite(exact), exact, 0.0)))
        sum_of_errors = float(torch.linalg.vector_norm(error))
    site.size += size**2
    if sum_of_errors == 0:
        return None
    site.error += sum_of_errors**2
    site.largest_error = max(site.largest_error, float(torch.linalg.vector_norm(error, float("inf"))))
    if low.dtype == torch.float16:
        site.underflows += int(((low == 0) & (exact != 0)).sum())
    return error


def _note_birth(site: Site, low: torch.Tensor, exact: torch.Tensor, inputs: list[torch.Tensor], number: int) -> None:
    """Stores that the call made a value that is not finite, if its inputs are finite."""
    if site.born is not None or any(_core.worst_value(one, True) in (1, 2) for one in inputs):
        return
    bad = ~torch.isfinite(low)
    if not bool(bad.any()):
        return
    # Infinities of the code itself, as in a mask, are the same in float32.
    same = bool(((low == exact) | ~bad).all())
    if same:
        return
    site.born = number
    site.birth = "overflow" if bool(torch.isfinite(exact[bad]).any()) else "not finite"


def compare_others(site: Site, low: torch.Tensor, exact: torch.Tensor) -> None:
    """Adds a result that does not consist of floats to the counts of a site."""
    if low.shape == exact.shape and low.dtype == exact.dtype:
        site.counted += low.numel()
        site.changed += int((low != exact).sum())


def is_comparable(low: torch.Tensor, exact: torch.Tensor) -> bool:
    return is_lower(low) and exact.is_floating_point() and exact.dtype not in LOWER and low.shape == exact.shape
