"""Measures how fast the lower precision is here, compared to float32."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F

from habana_mp import hmp


class Case(NamedTuple):
    """An operation of an activation and weights, or of activations alone, that is timed."""

    name: str
    call: Callable[..., torch.Tensor]
    sizes: tuple[tuple[int, ...], ...]
    trains: bool = False
    has_weights: bool = True


def _linear(size: int, rows: int, *, trains: bool = False) -> Case:
    return Case(f"linear {size}x{size}, batch {rows}", F.linear, ((rows, size), (size, size)), trains)


def _convolution(*, trains: bool = False) -> Case:
    call = functools.partial(F.conv2d, padding=1)
    return Case("conv2d 64x64, 3x3, 8 x 28x28", call, ((8, 64, 28, 28), (64, 64, 3, 3)), trains)


CASES = (
    _linear(64, 1),
    _linear(256, 1),
    _linear(1024, 1),
    _linear(1024, 64),
    _linear(1024, 1024),
    _convolution(),
    Case("attention, 8 heads, 256 x 64", F.scaled_dot_product_attention, ((1, 8, 256, 64),) * 3, has_weights=False),
    _linear(1024, 512, trains=True),
    _convolution(trains=True),
)


#: Interleaved rounds of each measurement; the first one warms up.
_ROUNDS = 10


def ratios(device: str, case: Case) -> tuple[float, float | None]:
    """Returns an operation's time in bfloat16 over its time in float32, with all tensors in each precision: the best of
    interleaved rounds. And the ratio with weights in float32 under ``convert``, or None if not converted."""
    values = [torch.randn(one, device=device) for one in case.sizes]
    lower = [one.bfloat16() for one in values]
    mixed = [lower[0], *map(torch.nn.Parameter, values[1:])] if case.has_weights else lower
    for one in (*values, *lower, *mixed):
        one.requires_grad_(case.trains)

    def run(tensors: list[torch.Tensor]) -> None:
        result = case.call(*tensors)
        if case.trains:
            torch.autograd.grad(result, tensors, torch.ones_like(result))

    calls = {"fp32": values, "lower": lower} | ({"by hmp": mixed} if hmp.is_converted() else {})
    times: dict[str, list[float]] = {name: [] for name in calls}
    repeat = max(2, (1 << 20) // sum(one.numel() for one in values))
    with torch.set_grad_enabled(case.trains):
        for round_number in range(_ROUNDS):
            for name, tensors in calls.items():
                with nullcontext() if name == "by hmp" else hmp.disable_casts():
                    begin = time.perf_counter()
                    for _ in range(repeat):
                        run(tensors)
                    if device != "cpu":
                        getattr(torch, device).synchronize()
                    if round_number:
                        times[name].append(time.perf_counter() - begin)
    best = {name: min(seconds) for name, seconds in times.items()}
    return best["lower"] / best["fp32"], best["by hmp"] / best["fp32"] if "by hmp" in best else None
