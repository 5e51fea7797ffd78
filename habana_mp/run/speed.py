"""Measures how fast the lower precision is here, compared to float32."""

from __future__ import annotations

import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from habana_mp import hmp
from habana_mp.common.devices import devices

#: The time limit of the measurement before a script, which runs in a process of its own.
_SECONDS = 1.0


def ratios(
    device: str,
    size: int,
    rows: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    rounds: int = 10,
    repeat: int | None = None,
) -> tuple[float, float | None]:
    """Returns a linear layer's time in the lower precision over its time in float32, with a weight in each precision:
    the best of interleaved rounds. And the ratio with a cached cast, or None if not converted or not on the CPU."""
    x, weight = torch.randn(rows, size, device=device), torch.nn.Parameter(torch.randn(size, size, device=device))
    lower, lower_weight = x.to(dtype), weight.detach().to(dtype)
    linear = torch.nn.functional.linear
    calls: dict[str, Callable[[], Any]] = {
        "fp32": lambda: linear(x, weight),
        "lower": lambda: linear(lower, lower_weight),
    }
    if device == "cpu" and hmp.is_converted():
        calls["kept"] = lambda: linear(lower, weight)
    times: dict[str, list[float]] = {name: [] for name in calls}
    repeat = max(5, (1 << 20) // (size * size)) if repeat is None else repeat
    with torch.no_grad():
        for round_number in range(rounds):
            for name, call in calls.items():
                with nullcontext() if name == "kept" else hmp.disable_casts():
                    begin = time.perf_counter()
                    for _ in range(repeat):
                        call()
                    if device != "cpu":
                        getattr(torch, device).synchronize()
                    if round_number:  # the first round warms up
                        times[name].append(time.perf_counter() - begin)
    best = {name: min(seconds) for name, seconds in times.items()}
    return best["lower"] / best["fp32"], best["kept"] / best["fp32"] if "kept" in best else None


def ratio_on_this_cpu(dtype: torch.dtype) -> float | None:
    """Returns the ratio for a layer of medium size. None if there is a device besides the CPU, or no result in time.

    A forked child measures. So this process keeps its random numbers, starts no OpenMP threads (which a fork of the
    script could not use), and touches no device.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about a fork in a process with threads
        child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            null_device = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):
                os.dup2(null_device, stream)
            found = ratios("cpu", 512, 64, dtype=dtype, rounds=4, repeat=2)[0] if devices() == ["cpu"] else None
            os.write(writing, json.dumps(found).encode())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)  # no exit handler of the script's process may run here
    os.close(writing)
    try:
        ready = select.select([reading], [], [], _SECONDS)[0]
        answer = os.read(reading, 100) if ready else b""
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)  # it may still be measuring
        os.waitpid(child, 0)
    found = json.loads(answer or b"null")
    return None if found is None else float(found)
