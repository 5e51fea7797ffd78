"""Compares optimizers, clipping and moving average of the stand-in for Gaudi with torch's own or with a plain loop.

    python benchmarks/gaudi_optimizers.py [--rounds N] [--threads N] [--only NAME]

There are 30 M parameters on the CPU, in weights with the sizes of a language model and of a ResNet. The peer is torch's
fused function, if there is one, else a plain loop over the weights. All contenders step in turn, round after round. A
ratio is the time of the peer divided by the time of the stand-in in the same round, and the result is the median of all
rounds. Above 1 the stand-in is faster.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any

import habana_mp.gaudi  # noqa: F401 (makes the next imports work)

# isort: split

import torch
from habana_frameworks.torch.hpex.movingavrg import FusedEMA
from habana_frameworks.torch.hpex.normalization import FusedClipNorm
from habana_frameworks.torch.hpex.optimizers import (
    FusedAdagrad,
    FusedAdamW,
    FusedLamb,
    FusedLars,
    FusedResourceApplyMomentum,
    FusedSGD,
)
from timing import Contender, run
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from habana_mp import _core

LAYER = [(512, 512)] * 4 + [(2048, 512), (512, 2048)] + [(512,)] * 9
BLOCK = [(256, 64, 1, 1), (64, 256, 1, 1), (64, 64, 3, 3), (512, 512, 3, 3), (64,), (256,)]
SHAPES = [(16_000, 512), *LAYER * 4, *BLOCK * 3, (1000, 2048)]  # 30.1 M

Params = list[torch.nn.Parameter]
Step = Callable[[], object]


def weights() -> Params:
    params = [torch.nn.Parameter(torch.randn(shape) * 0.02) for shape in SHAPES]
    for param in params:
        param.grad = torch.randn_like(param) * 0.01
    return params


@torch.no_grad()
def plain_adamw(params: Params, state: dict[Any, Any], lr: float, eps: float, weight_decay: float) -> None:
    for param in params:
        grad = param.grad
        if param not in state:
            state[param] = torch.zeros_like(param), torch.zeros_like(param)
        average, square = state[param]
        average.mul_(0.9).add_(grad, alpha=0.1)
        square.mul_(0.999).addcmul_(grad, grad, value=0.001)
        param.mul_(1 - lr * weight_decay)
        param.addcdiv_(average, square.sqrt().add_(eps), value=-lr)


@torch.no_grad()
def plain_lamb(params: Params, state: dict[Any, Any], step: list[int], lr: float, max_grad_norm: float | None) -> None:
    if max_grad_norm is not None:
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(param.grad) for param in params]))
        scale = torch.clamp(max_grad_norm / norm, max=1.0)
    step[0] += 1
    correction, square_correction = 1 - 0.9 ** step[0], 1 - 0.999 ** step[0]
    for param in params:
        grad = param.grad if max_grad_norm is None else param.grad * scale
        if param not in state:
            state[param] = torch.zeros_like(param), torch.zeros_like(param)
        average, square = state[param]
        average.mul_(0.9).add_(grad, alpha=0.1)
        square.mul_(0.999).addcmul_(grad, grad, value=0.001)
        update = (average / correction).div_((square / square_correction).sqrt_().add_(1e-6))
        update.add_(param, alpha=0.01)
        ratio = torch.linalg.vector_norm(param) / torch.linalg.vector_norm(update)
        param.add_(update.mul_(ratio), alpha=-lr)


@torch.no_grad()
def plain_lars(params: Params, optimizer: torch.optim.SGD, decay: float) -> None:
    for param in params:
        size, size_of_grad = torch.linalg.vector_norm(param), torch.linalg.vector_norm(param.grad)
        ratio = 0.001 * size / (size_of_grad + decay * size + 1e-8)
        param.grad.add_(param, alpha=decay).mul_(ratio)
    optimizer.step()


def uncorrected_adamw() -> tuple[Step, Step]:
    ours = FusedAdamW(weights(), lr=1e-5, weight_decay=0.01, bias_correction=False)
    theirs, state = weights(), {}
    return ours.step, lambda: plain_adamw(theirs, state, 1e-5, 1e-6, 0.01)


def lamb(max_grad_norm: float | None) -> tuple[Step, Step]:
    ours = FusedLamb(weights(), lr=1e-5, max_grad_norm=max_grad_norm)
    theirs, state, step = weights(), {}, [0]
    return ours.step, lambda: plain_lamb(theirs, state, step, 1e-5, max_grad_norm)


def lars() -> tuple[Step, Step]:
    params, theirs = weights(), weights()
    ours = FusedLars(FusedSGD(params, lr=1e-5, momentum=0.9, weight_decay=1e-4), [1] * len(params))
    plain = torch.optim.SGD(theirs, lr=1e-5, momentum=0.9, foreach=False)
    return ours.step, lambda: plain_lars(theirs, plain, 1e-4)


def torchs(ours: Any, torchs: Any, **options: Any) -> tuple[Step, Step]:
    return ours(weights(), **options).step, torchs(weights(), fused=True, **options).step


def clipping(factor: float) -> tuple[Step, Step]:
    """Clips to the norm of the last call, times ``factor``."""

    def clip(call: Callable[[Params, float], object]) -> Step:
        params, norm = weights(), [50.0 if factor < 1 else 100.0]  # the gradients' norm is 54.8

        def step() -> None:
            norm[0] *= factor
            call(params, norm[0])

        return step

    def ours(params: Params, norm: float) -> object:
        return FusedClipNorm(params, norm).clip_norm(params)

    return clip(ours), clip(torch.nn.utils.clip_grad_norm_)


def moving_average() -> tuple[Step, Step]:
    model = torch.nn.Module()
    model.weights = torch.nn.ParameterList(weights())
    ours = FusedEMA(model, 0.999)
    theirs = AveragedModel(copy.deepcopy(model), multi_avg_fn=get_ema_multi_avg_fn(0.999))
    theirs.update_parameters(model)  # the first call copies
    return lambda: ours.update(model), lambda: theirs.update_parameters(model)


#: For each case: a function that makes the steps of the stand-in and of the peer, and the kind of the peer.
CASES: dict[str, tuple[Callable[[], tuple[Step, Step]], str]] = {
    "FusedAdamW": (lambda: torchs(FusedAdamW, torch.optim.AdamW, lr=1e-5, weight_decay=0.01), "fused"),
    "FusedSGD": (lambda: torchs(FusedSGD, torch.optim.SGD, lr=1e-5, momentum=0.9, weight_decay=1e-4), "fused"),
    "FusedResourceApplyMomentum": (
        lambda: torchs(FusedResourceApplyMomentum, torch.optim.SGD, lr=1e-5, momentum=0.9),
        "fused",
    ),
    "FusedAdagrad": (lambda: torchs(FusedAdagrad, torch.optim.Adagrad, lr=1e-5), "fused"),
    "FusedClipNorm, clips": (lambda: clipping(0.9999), "torch's"),
    "FusedClipNorm, below": (lambda: clipping(1.0), "torch's"),
    "FusedEMA": (moving_average, "torch's"),
    "FusedAdamW, uncorrected": (uncorrected_adamw, "plain"),
    "FusedLamb": (lambda: lamb(None), "plain"),
    "FusedLamb, clips": (lambda: lamb(1.0), "plain"),
    "FusedLars": (lars, "plain"),
}


def compare(name: str, threads: int, rounds: int) -> None:
    make, peer = CASES[name]
    mine, theirs = make()
    ours, other = Contender("ours", mine), Contender(peer, theirs)
    torch.set_num_threads(threads)
    run([ours, other], rounds=rounds, target_seconds=0.1)
    median, low, high = other.ratio_to(ours)
    cell = f"{median:.2f} ({low:.2f} to {high:.2f})"
    print(f"{name:27} {peer:8} {threads:7}   {cell:22} {ours.median * 1e3:7.1f} {other.median * 1e3:7.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, help="one number of threads alone (default 1 and 2)")
    parser.add_argument("--only", help="those whose names contain this")
    arguments = parser.parse_args()
    print(f"instruction set: {_core.kernels_path()}, torch {torch.__version__}, {arguments.rounds} rounds")
    print("what                        peer     threads   x                      ms: ours, the peer")
    for name in CASES:
        if arguments.only is None or arguments.only in name:
            for threads in [arguments.threads] if arguments.threads else [1, 2]:
                compare(name, threads, arguments.rounds)


if __name__ == "__main__":
    main()
