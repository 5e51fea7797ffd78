"""What torch's documentation shows with autocast and GradScaler, under hmp.autocast with the same lists: losses,
weights and gradients are torch.autocast's to the bit."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import _core, hmp
from helpers.comparing import assert_same, tensors
from helpers.each import each

BF16, FP16 = torch.bfloat16, torch.float16
pytestmark = [pytest.mark.usefixtures("one_thread")]

Region = Callable[..., Any]


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(32, 16)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding((x.abs() * 31).long().clamp(0, 31)))).mean(1)


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 4))


def convolutions() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 4, 4)),
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 4),
    )


MODELS: dict[str, Callable[[], torch.nn.Module]] = {"mlp": mlp, "convolutions": convolutions, "attention": Attention}


def batches(count: int = 4) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(count):
        yield torch.rand(8, 16), torch.randint(0, 4, (8,))


def gradients(*models: torch.nn.Module) -> list[torch.Tensor]:
    return [p.grad for model in models for p in model.parameters() if p.grad is not None]


def typical(
    region: Region, scaler: torch.amp.GradScaler, make: Callable[[], torch.nn.Module], most: float | None = None
) -> Iterator[Any]:
    """``most`` is the norm to which gradients are clipped."""
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, target in batches():
        optimizer.zero_grad()
        with region():
            output = model(x)
            loss = F.cross_entropy(output, target)
        scaler.scale(loss).backward()
        if most is not None:
            scaler.unscale_(optimizer)
            yield torch.nn.utils.clip_grad_norm_(model.parameters(), most)
        scaler.step(optimizer)
        scaler.update()
        yield output, loss, gradients(model), list(model.parameters())


clipping = functools.partial(typical, most=0.1)


def accumulation(region: Region, scaler: torch.amp.GradScaler, make: Callable[[], torch.nn.Module]) -> Iterator[Any]:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (x, target) in enumerate(batches(6)):
        with region():
            loss = F.cross_entropy(model(x), target) / 2
        scaler.scale(loss).backward()
        yield loss, gradients(model)
        if i % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            yield list(model.parameters())


def penalty(region: Region, scaler: torch.amp.GradScaler, make: Callable[[], torch.nn.Module]) -> Iterator[Any]:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, target in batches():
        optimizer.zero_grad()
        with region():
            loss = F.cross_entropy(model(x), target)
        parameters = [p for p in model.parameters() if p.requires_grad]
        scaled = torch.autograd.grad(scaler.scale(loss), parameters, create_graph=True)
        unscaled = [g * (1.0 / scaler.get_scale()) for g in scaled]
        with region():
            total = loss + torch.stack([g.pow(2).sum() for g in unscaled]).sum().sqrt()
        scaler.scale(total).backward()
        scaler.step(optimizer)
        scaler.update()
        yield loss, total, gradients(model), list(model.parameters())


def several(region: Region, scaler: torch.amp.GradScaler, make: Callable[[], torch.nn.Module]) -> Iterator[Any]:
    models = make(), make()
    optimizers = torch.optim.SGD(models[0].parameters(), lr=0.1), torch.optim.Adam(models[1].parameters())
    for x, target in batches():
        for optimizer in optimizers:
            optimizer.zero_grad()
        with region():
            outputs = models[0](x), models[1](x)
            first = F.cross_entropy(2 * outputs[0] + 3 * outputs[1], target)
            second = F.cross_entropy(3 * outputs[0] - 5 * outputs[1], target)
        scaler.scale(first).backward(retain_graph=True)
        scaler.scale(second).backward()
        scaler.unscale_(optimizers[0])
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        yield first, second, gradients(*models), [p for model in models for p in model.parameters()]


def run(training: Any, region: Region, make: Callable[[], torch.nn.Module], scale: bool) -> list[Any]:
    torch.manual_seed(0)
    scaler = torch.amp.GradScaler("cpu", enabled=scale, init_scale=128.0)
    copied = []
    for values in training(region, scaler, make):
        copied.append(torch.utils._pytree.tree_map_only(torch.Tensor, lambda one: one.detach().clone(), values))
    return copied


TRAININGS = [typical, clipping, accumulation, several]


def assert_are_autocasts(ours: Any, theirs: Any, make: Callable[[], Any]) -> None:
    """Asserts the bits; or some roundings where torch rounds more than once: a bias of rows with gaps, as in attention,
    and convolutions without instructions."""
    if make is mlp or (make is convolutions and _core.kernels_multiplies_bfloat16()):
        assert_same(ours, theirs)
        return
    one, other = (torch.cat([value.detach().float().flatten() for value in tensors(run_)]) for run_ in (ours, theirs))
    assert (one - other).norm() <= 0.05 * other.norm()


@each("make", MODELS.values())
@each("scale", [False, True])
@each("training", TRAININGS)
def test_training_is_torch_autocasts_to_the_bit(training: Any, scale: bool, make: Callable[[], Any]) -> None:
    ours = run(training, lambda: hmp.autocast("cpu", BF16), make, scale)
    assert_are_autocasts(ours, run(training, lambda: torch.autocast("cpu", BF16), make, scale), make)


@pytest.mark.parametrize("scale", [False, True], ids=["unscaled", "scaled"])
@pytest.mark.parametrize("make", [mlp, convolutions])
def test_a_gradient_penalty_is_torch_autocasts_to_the_bit(scale: bool, make: Callable[[], Any]) -> None:
    ours = run(penalty, lambda: hmp.autocast("cpu", BF16), make, scale)
    assert_are_autocasts(ours, run(penalty, lambda: torch.autocast("cpu", BF16), make, scale), make)


@each("training", [*TRAININGS, penalty])
def test_float16_with_a_scaler_is_torch_autocasts_to_the_bit(training: Any) -> None:
    ours = run(training, lambda: hmp.autocast("cpu", FP16), mlp, True)
    assert_same(ours, run(training, lambda: torch.autocast("cpu", FP16), mlp, True))


@each("dtype", [BF16, FP16])
@each("training", [*TRAININGS, penalty])
def test_training_under_convert_is_torch_autocasts_to_the_bit(training: Any, dtype: torch.dtype) -> None:
    expected = run(training, lambda: torch.autocast("cpu", dtype), mlp, dtype is FP16)
    hmp.convert(preset="torch-cpu", dtype=dtype)
    assert_same(run(training, contextlib.nullcontext, mlp, dtype is FP16), expected)


@pytest.mark.parametrize("under", ["region", "convert"])
def test_a_step_with_infinite_gradients_is_skipped_and_the_scale_halved(under: str) -> None:
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    if under == "convert":
        hmp.convert(preset="torch-cpu", dtype=FP16)
    before = [p.detach().clone() for p in model.parameters()]
    for x, target in batches(2):
        with hmp.autocast("cpu", FP16) if under == "region" else torch.enable_grad():
            loss = F.cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert_same(list(model.parameters()), before)
    assert scaler.get_scale() == 2.0**38


def test_a_backward_inside_the_region_runs_as_the_forward_was_recorded() -> None:
    def step(region: Region, inside: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = mlp()
        x, target = next(batches(1))
        with region():
            loss = F.cross_entropy(model(x), target)
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return gradients(model)

    expected = step(lambda: torch.autocast("cpu"), False)
    assert_same(step(lambda: hmp.autocast("cpu"), True), expected)
    assert_same(step(lambda: hmp.autocast("cpu"), False), expected)
