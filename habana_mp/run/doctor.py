"""``habana-mp doctor``: what is here, how fast the lower precision is, and whether all assumptions hold."""

from __future__ import annotations

import functools
import importlib
import itertools
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import NamedTuple

import torch
import torch.nn.functional as F

from habana_mp import __version__, _core, hmp, kernels
from habana_mp.common import ledger
from habana_mp.common.devices import devices
from habana_mp.patches.all import modules_of_torch
from habana_mp.patches.torch import products
from habana_mp.patches.torch.weight_cache import why_none_is_cached

#: Modules that are only imported when they are needed, and that declare assumptions.
_WITH_ASSUMPTIONS = (
    "habana_mp.patches.tools.main_module",
    "habana_mp.patches.tools.spawned_processes",
    "habana_mp.patches.torch.reductions",
)


def show() -> int:
    """Shows what is here. Returns the exit status."""
    print(f"habana_mp     {__version__}")
    print(f"Python        {platform.python_version()} on {platform.machine()}, {platform.system()}")
    print(f"torch         {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"devices       {', '.join(devices())}")
    print(f"kernels       {kernels.path()} (of {', '.join(_core.kernels_paths())}); HABANA_MP_KERNELS forces one")
    status = 0
    try:
        hmp.convert()
        print(f"reader        {_core.reader()}")
        why = why_none_is_cached()
        print(f"weights       casts are {f'not cached: {why}' if why else 'cached'}")
        print(f"patched       the default lists cover {_core.installed_count()} functions and methods of torch")
    except (ImportError, RuntimeError) as error:
        print(f"patched       impossible here: {error}")
        status = 1
    failed = [name for name, *_, state in _assumptions() if state.startswith(ledger.DOES_NOT_HOLD)]
    if failed:
        print(f"assumptions   {', '.join(failed)}: not as expected; `habana-mp doctor --assumptions` tells more")
    if status == 0:
        _print_bf16()
    hmp.restore()
    return status


def show_assumptions() -> int:
    """Checks all assumptions that can be checked, of modules that it imports and of torch. Returns the exit status."""
    end = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its older modules
        for module in (*_WITH_ASSUMPTIONS, *modules_of_torch()):
            with suppress(Exception):  # a module that this torch lacks, or was built without
                importlib.import_module(module)
        try:
            hmp.convert(within="modules")
        except (ImportError, RuntimeError) as error:
            end = f"\nconvert is impossible here: {error}"
        hmp.restore()
    rows = _assumptions()
    width = max(len(name) for name, *_ in rows)
    counts = {"holds": 0, "fails": 0, "waits": 0}
    for name, assumed, check, otherwise, state in rows:
        print(f"{name:<{width}}  {state}")
        fails = state.startswith(ledger.DOES_NOT_HOLD)
        counts["fails" if fails else "waits" if state == ledger.NOT_ASKED else "holds"] += 1
        if fails:
            for title, text in (("assumed", assumed), ("checked", check), ("instead", otherwise)):
                print(f"{'':<{width}}    {title}: {text}")
    print(f"{counts['holds']} hold, {counts['fails']} do not hold, {counts['waits']} were not asked yet{end}")
    return 1 if counts["fails"] or end else 0


def _assumptions() -> list[tuple[str, str, str, str, str]]:
    """Returns all assumptions, of Python code and of the core."""
    return [*ledger.rows(), *_core.assumptions()]


def _print_bf16() -> None:
    way = "by its instructions" if products.multiplies_bfloat16() else "in float32, from rounded operands"
    print(f"products      of bf16 are computed {way}")
    print("bf16          time of bf16 as a multiple of fp32's, below 1 is faster (best of 9):")
    for device in devices():
        found, by_torch = [], []
        for case in _CASES:
            plain, by_autocast, by_hmp = _ratios(device, case)
            others = f"{plain:6.2f}  {_verdict(plain):<8}  autocast {by_autocast:6.2f}"
            print(f"  {device:<6} {case.name:<35} {others}  by hmp {by_hmp:6.2f}  {_verdict(by_hmp)}")
            found.append(by_hmp)
            by_torch.append(plain)
        mean, slower = statistics.geometric_mean(found), sum(_verdict(one) == "slower" for one in found)
        what = {"the same": "as fast as fp32"}.get(_verdict(mean), f"{_verdict(mean)} than fp32")
        exceptions = f"; {slower} of {len(found)} of these operations are slower" if slower else ""
        speeds = [1 / statistics.geometric_mean(one) for one in (by_torch, found)]
        print(
            f"speed         {device}: torch multiplies bf16 at {speeds[0]:.2f}, habana_mp at {speeds[1]:.2f} of fp32's"
        )
        print(f"verdict       {device}: bf16 takes {mean:.2f} of the time of fp32 in the mean: {what}{exceptions}")


def _verdict(ratio: float) -> str:
    return "faster" if ratio < 0.95 else "slower" if ratio > 1.05 else "the same"


class Case(NamedTuple):
    """An operation of an activation and a weight, or of three activations, that is timed."""

    name: str
    call: Callable[..., torch.Tensor]
    sizes: tuple[tuple[int, ...], ...]
    trains: bool = False


_CONVOLUTION = Case(
    "conv2d 64x64, 3x3, 8 x 28x28", functools.partial(F.conv2d, padding=1), ((8, 64, 28, 28), (64, 64, 3, 3))
)

_CASES = (
    *(
        Case(f"linear {size}x{size}, batch {rows}", F.linear, ((rows, size), (size, size)))
        for size, rows in ((64, 1), (256, 1), (1024, 1), (1024, 64), (1024, 1024))
    ),
    _CONVOLUTION,
    Case("attention, 8 heads, 256 x 64", F.scaled_dot_product_attention, ((1, 8, 256, 64),) * 3),
    Case("train linear 1024x1024, batch 512", F.linear, ((512, 1024), (1024, 1024)), trains=True),
    _CONVOLUTION._replace(name=f"train {_CONVOLUTION.name}", trains=True),
)


def _ratios(device: str, case: Case) -> list[float]:
    """Returns an operation's time in bfloat16 over its time in float32, with all tensors in each precision: the best of
    interleaved rounds. And the ratios with weights in float32 under ``torch.autocast``, and under ``convert``."""
    values = [torch.randn(one, device=device) for one in case.sizes]
    lower = [one.bfloat16() for one in values]
    mixed = [lower[0], torch.nn.Parameter(values[1])] if len(values) == 2 else lower
    for one in (*values, *lower, *mixed):
        one.requires_grad_(case.trains or isinstance(one, torch.nn.Parameter))  # autocast caches no other casts

    def run(tensors: list[torch.Tensor]) -> None:
        result = case.call(*tensors)
        if case.trains:
            torch.autograd.grad(result, tensors, torch.ones_like(result))

    calls = {"fp32": values, "lower": lower, "autocast": mixed, "by hmp": mixed}
    region = torch.autocast(device, torch.bfloat16)
    times: dict[str, list[float]] = {name: [] for name in calls}
    repeat = max(2, (1 << 20) // sum(one.numel() for one in values))
    with torch.set_grad_enabled(case.trains):
        for _, (name, tensors) in itertools.product(range(10), calls.items()):
            no_casts = nullcontext() if name == "by hmp" else hmp.disable_casts()
            with no_casts, region if name == "autocast" else nullcontext():
                begin = time.perf_counter()
                for _ in range(repeat):
                    run(tensors)
                if device != "cpu":
                    getattr(torch, device).synchronize()
                times[name].append(time.perf_counter() - begin)
    best = {name: min(seconds[1:]) for name, seconds in times.items()}  # the first round warms up
    return [best[name] / best["fp32"] for name in list(calls)[1:]]
