"""Plain references of the stand-in's optimizers. As a script it compares each of them after some steps, under lists."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from habana_frameworks.torch.hpex import hmp
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

SHAPES = [(5, 4), (7,), (2, 3, 2, 2), (6, 3)]


def weights() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).hpu()) for shape in SHAPES]


def give_gradients(params: list[Any], step: int) -> None:
    """The first is missing now and then, the last is sparse."""
    generator = torch.Generator().manual_seed(step)
    for place, param in enumerate(params):
        grad = torch.randn(param.shape, generator=generator)
        if place == 3:
            grad[::2] = 0
            grad = grad.to_sparse(1)
        param.grad = None if place == 0 and step % 3 == 0 else grad


def dense(params: list[Any]) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
    return [(i, p.data.double(), p.grad.to_dense().double()) for i, p in enumerate(params) if p.grad is not None]


class Plain:
    """An optimizer in float64, written down as its formula; its weights are kept aside."""

    def __init__(self, params: list[Any], update: Callable[..., torch.Tensor]) -> None:
        self.values = [param.detach().double() for param in params]
        self.memory: list[dict[str, Any]] = [{"t": 0} for _ in params]
        self.update = update

    def step(self, params: list[Any], **shared: Any) -> None:
        for i, _, grad in dense(params):
            self.memory[i]["t"] += 1
            self.values[i] = self.values[i] - self.update(self.values[i], grad, self.memory[i], i, **shared)


def adamw(lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, bias_correction=True) -> Callable[..., Any]:
    def update(p: Any, g: Any, memory: Any, _: int) -> Any:
        memory["m"] = betas[0] * memory.get("m", 0) + (1 - betas[0]) * g
        memory["v"] = betas[1] * memory.get("v", 0) + (1 - betas[1]) * g * g
        c1, c2 = ((1 - b ** memory["t"]) if bias_correction else 1.0 for b in betas)
        # Decay first: what is subtracted is taken from the decayed weight.
        return lr * weight_decay * p + lr * (memory["m"] / c1) / ((memory["v"] / c2).sqrt() + eps)

    return update


def sgd(lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False) -> Callable[..., Any]:
    def update(p: Any, g: Any, memory: Any, _: int) -> Any:
        g = g + weight_decay * p
        if momentum:
            memory["b"] = momentum * memory["b"] + (1 - dampening) * g if "b" in memory else g
            g = g + momentum * memory["b"] if nesterov else memory["b"]
        return lr * g

    return update


def adagrad(lr=1e-2, lr_decay=0.0, weight_decay=0.0, initial_accumulator_value=0.0, eps=1e-10) -> Callable[..., Any]:
    def update(p: Any, g: Any, memory: Any, _: int) -> Any:
        g = g + weight_decay * p
        memory["s"] = memory.get("s", initial_accumulator_value) + g * g
        return lr / (1 + (memory["t"] - 1) * lr_decay) * g / (memory["s"].sqrt() + eps)

    return update


def lamb(
    lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, dtype=None, adam_w_mode=True,
    grad_averaging=True, max_grad_norm=1.0, use_nvlamb=False,
) -> Callable[..., Any]:  # fmt: skip
    def update(p: Any, g: Any, memory: Any, _: int, norm: float) -> Any:
        if max_grad_norm:
            g = g / max(1.0, norm / max_grad_norm)
        if not adam_w_mode:
            g = g + weight_decay * p
        memory["m"] = betas[0] * memory.get("m", 0) + ((1 - betas[0]) if grad_averaging else 1.0) * g
        memory["v"] = betas[1] * memory.get("v", 0) + (1 - betas[1]) * g * g
        c1, c2 = ((1 - b ** memory["t"]) if bias_correction else 1.0 for b in betas)
        u = (memory["m"] / c1) / ((memory["v"] / c2).sqrt() + eps)
        if adam_w_mode:
            u = u + weight_decay * p
        ratio = p.norm() / u.norm() if (weight_decay or use_nvlamb) and p.norm() > 0 and u.norm() > 0 else 1.0
        return lr * ratio * u

    return update


def lars(mask: list[int], eeta: float, eps: float, decay: float, **options: Any) -> Callable[..., Any]:
    step = sgd(**options)

    def update(p: Any, g: Any, memory: Any, i: int) -> Any:
        ratio = eeta * p.norm() / (g.norm() + decay * p.norm() + eps) if mask[i] else 1.0
        return step(p, (g + decay * p) * ratio, memory, i)

    return update


def compare(make: Callable[[list[Any]], Any], update: Callable[..., Any], *, needs_norm: bool = False) -> None:
    ours = weights()
    optimizer, plain = make(ours), Plain(ours, update)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    for step in range(30):
        give_gradients(ours, step)
        grads = [grad for _, _, grad in dense(ours)]
        shared = {"norm": float(torch.stack([one.norm() for one in grads]).norm())} if needs_norm else {}
        plain.step(ours, **shared)
        optimizer.step()
        scheduler.step()
        if step == 15:  # goes on from its file
            saved = io.BytesIO()
            torch.save(optimizer.state_dict(), saved)
            saved.seek(0)
            optimizer = make(ours)
            optimizer.load_state_dict(torch.load(saved, map_location="hpu"))
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    for mine, wanted in zip(ours, plain.values, strict=True):
        torch.testing.assert_close(mine.detach().double(), wanted, rtol=2e-5, atol=2e-6)
    copy.deepcopy(optimizer).step()
    assert isinstance(optimizer, torch.optim.Optimizer)


def of(kind: Any, update: Any, options: list[dict[str, Any]], **how: Any) -> None:
    for one in options:
        compare(
            lambda params, one=one: kind([{"params": params[:2]}, {"params": params[2:]}], **one), update(**one), **how
        )


def check_lars() -> None:
    for mask, eps, decay, options in (
        ([1, 0, 1, 1], 1e-3, 1e-2, {"lr": 0.5, "momentum": 0.9}),
        ([True, False, False, True], 0.0, 0.0, {"lr": 0.5}),
    ):
        compare(
            lambda params, mask=mask, eps=eps, decay=decay, options=options: FusedLars(
                FusedSGD(params, weight_decay=decay, **options), mask, eps=eps
            ),
            lars(mask, 0.001, eps, decay, **options),
        )
    with pytest.raises(ValueError, match="one entry for each of 4 weights; got 1"):
        FusedLars(FusedSGD(weights(), lr=0.1), [1])


def check_clip_norm() -> None:
    for max_norm in (0.5, 1e3):
        params = weights()
        clip = FusedClipNorm((one for one in params), max_norm)
        for step in range(5):
            give_gradients(params, step)
            before = [grad for _, _, grad in dense(params)]
            norm = torch.stack([one.norm() for one in before]).norm()
            told = clip.clip_norm(one for one in params)
            torch.testing.assert_close(told.double(), norm, rtol=1e-6, atol=0)
            scale = min(1.0, max_norm / (float(norm) + 1e-6))
            for (_, _, got), one in zip(dense(params), before, strict=True):
                torch.testing.assert_close(got, one * scale, rtol=1e-5, atol=1e-7)


def check_moving_average() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).to("hpu")
    average = FusedEMA(model, 0.9)
    plain = {name: value.double().clone() for name, value in model.state_dict().items()}
    optimizer = FusedSGD(model.parameters(), lr=0.1)
    for _ in range(20):
        model(torch.randn(4, 3, device="hpu")).pow(2).sum().backward()
        optimizer.step()
        average.update(model)
        for name, value in model.state_dict().items():
            plain[name] = plain[name] * 0.9 + value.double() * 0.1 if value.is_floating_point() else value
    for name, value in average.ema.state_dict().items():
        torch.testing.assert_close(value.double(), plain[name].double(), rtol=1e-5, atol=1e-6)
    assert not average.ema.training
    assert not any(one.requires_grad for one in average.ema.parameters())
    assert average.updates == 20


CHECKS: dict[str, Callable[[], None]] = {
    "FusedAdamW": lambda: of(
        FusedAdamW,
        adamw,
        [
            {"lr": 1e-2, "betas": (0.8, 0.99), "eps": 1e-3, "weight_decay": 0.1},
            {"lr": 1e-2, "eps": 1e-3, "weight_decay": 0.1, "bias_correction": False},
        ],
    ),
    "FusedSGD": lambda: of(
        FusedSGD,
        sgd,
        [
            {"lr": 1e-2, "weight_decay": 0.1},
            {"lr": 1e-2, "momentum": 0.9, "dampening": 0.1},
            {"lr": 1e-2, "momentum": 0.9, "nesterov": True},
        ],
    ),
    "FusedResourceApplyMomentum": lambda: of(FusedResourceApplyMomentum, sgd, [{"lr": 1e-2, "momentum": 0.9}]),
    "FusedAdagrad": lambda: of(
        FusedAdagrad,
        adagrad,
        [
            {"lr": 0.1, "eps": 1e-3},
            {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.5, "weight_decay": 0.1},
        ],
    ),
    "FusedLamb": lambda: of(
        FusedLamb,
        lamb,
        [
            {"lr": 1e-2, "dtype": torch.float32, "max_grad_norm": None},
            {"lr": 1e-2, "max_grad_norm": 0.5, "weight_decay": 0.1, "eps": 1e-3},
            {"lr": 1e-2, "bias_correction": False, "adam_w_mode": False, "grad_averaging": False, "eps": 1e-3},
            {"lr": 1e-2, "weight_decay": 0.0, "use_nvlamb": True, "eps": 1e-3},
        ],
        needs_norm=True,
    ),
    "FusedLars": check_lars,
    "FusedClipNorm": check_clip_norm,
    "FusedEMA": check_moving_average,
}

if __name__ == "__main__":
    hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False)
    for name, check in CHECKS.items():
        print(name)
        check()
