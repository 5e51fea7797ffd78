"""A student learns to agree with a teacher, its moving average, on two views of each point: in the style of Gaudi's
DINO folder."""

import argparse
import contextlib
import copy

import habana_frameworks.torch as ht
import habana_frameworks.torch.core as htcore
import torch
import torch.nn.functional as F
from torch import nn


def views(generator: torch.Generator, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    kind = torch.randint(0, 3, (64,), generator=generator)
    centers = torch.eye(3).repeat(1, 4)[kind] * 2
    first, second = (centers + 0.4 * torch.randn(64, 12, generator=generator) for _ in range(2))
    return first.to(device), second.to(device)


def head() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(1, 8))

    def forward(self, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        wanted = F.softmax((teacher - self.center) / 0.1, dim=-1).detach()
        self.center.mul_(0.9).add_(teacher.detach().float().mean(0, keepdim=True), alpha=0.1)
        return -(wanted * F.log_softmax(student / 0.2, dim=-1)).sum(-1).mean()


def main(args: argparse.Namespace) -> None:
    without_casts = contextlib.nullcontext
    if args.hmp:
        from habana_frameworks.torch.hpex import hmp

        hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False)
        without_casts = hmp.disable_casts
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    student = head().to(args.device)
    teacher = copy.deepcopy(student)
    teacher = ht.hpu.wrap_in_hpu_graph(teacher)
    for parameter in teacher.parameters():
        parameter.requires_grad_(False)
    criterion = Loss().to(args.device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    stream = ht.hpu.Stream()
    losses = []
    for _ in range(args.steps):
        first, second = views(generator, args.device)
        if first.device.type == "hpu":
            htcore.mark_step()
        region = torch.autocast(device_type="hpu", dtype=torch.bfloat16) if args.autocast else contextlib.nullcontext()
        with region, ht.hpu.stream(stream):
            loss = (criterion(student(first), teacher(second)) + criterion(student(second), teacher(first))) / 2
        optimizer.zero_grad()
        loss.backward()
        htcore.mark_step()
        with without_casts():
            optimizer.step()
        with torch.no_grad(), without_casts():
            for ours, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
                ours.mul_(0.99).add_(theirs, alpha=0.01)
        htcore.mark_step()
        losses.append(loss.item())
    ht.hpu.synchronize()
    assert all(parameter.dtype is torch.float32 and parameter.is_hpu for parameter in teacher.parameters())
    print(f"final loss {sum(losses[-20:]) / 20:.5f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="hpu")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--hmp", action="store_true")
    parser.add_argument("--autocast", action="store_true")
    main(parser.parse_args())
