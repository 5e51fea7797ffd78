"""A model and its training, by hand in one process, and on two ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.multiprocessing
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32


STEPS, RATE = 3, 1e-2
Batch = tuple[torch.Tensor, torch.Tensor]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))


def batch(rank: int, step: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, 16, generator=generator), torch.randint(0, 8, (8,), generator=generator)


def backward(model: nn.Module, of: Batch) -> None:
    result = model(of[0])
    assert result.dtype is BF16
    F.cross_entropy(result, of[1]).backward()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=RATE)


def step(optimizer: torch.optim.Optimizer) -> None:
    with hmp.disable_casts():
        optimizer.step()
    optimizer.zero_grad()


def weights(model: nn.Module) -> list[torch.Tensor]:
    """Returns the whole parameters."""
    whole = []
    for parameter in model.parameters():
        assert parameter.dtype is FP32
        whole.append(parameter.full_tensor() if isinstance(parameter, DTensor) else parameter)
    return [one.detach().clone() for one in whole]


def gradients(model: nn.Module, of: Batch, run: Callable[[nn.Module, Batch], None] = backward) -> list[torch.Tensor]:
    model.zero_grad()
    run(model, of)
    found = [torch.zeros_like(one) if one.grad is None else one.grad for one in model.parameters()]
    model.zero_grad()
    return found


def train_by_hand(micro: int = 1, run: Callable[[nn.Module, Batch], None] = backward) -> list[torch.Tensor]:
    """Trains three steps in one process, with the mean of both ranks' gradients."""
    model = network()
    optimizer = adamw(model)
    for number in range(STEPS):
        sums = []
        for rank in range(2):
            parts = [gradients(model, batch(rank, number * micro + i), run) for i in range(micro)]
            with hmp.disable_casts():
                sums.append([sum(same) for same in zip(*parts, strict=True)])
        with hmp.disable_casts():
            for parameter, first, second in zip(model.parameters(), *sums, strict=True):
                assert first.dtype is FP32
                parameter.grad = (first + second) / 2
        step(optimizer)
    return weights(model)


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    optimizer = optimizer or adamw(model)
    for number in range(STEPS):
        backward(model, batch(dist.get_rank(), number))
        step(optimizer)


def assert_near(actual: list[torch.Tensor], expected: list[torch.Tensor], within: float = 0.02) -> None:
    """Compares sums in bf16 that were computed in different orders."""
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype is other.dtype
        assert (one - other).norm() <= within * other.norm(), ((one - other).norm() / other.norm()).item()


def assert_ranks_agree(tensors: list[torch.Tensor]) -> None:
    for one in tensors:
        both = [torch.empty_like(one) for _ in range(2)]
        dist.all_gather(both, one.contiguous())
        assert torch.equal(*both)


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (2,))
