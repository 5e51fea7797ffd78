"""A classifier in the style of later releases: DDP, torch.autocast for HPU, and a `print` of the first process."""

import argparse
import builtins
import os

import habana_frameworks.torch.core as htcore
import torch
from habana_frameworks.torch.hpex.normalization import FusedClipNorm
from habana_frameworks.torch.hpex.optimizers import FusedAdamW
from habana_frameworks.torch.utils.distributed_utils import initialize_distributed_hpu


def setup_for_distributed(is_master: bool) -> None:
    builtin_print = builtins.print

    def print(*args, **kwargs):
        force = kwargs.pop("force", False)
        if is_master or force:
            builtin_print(*args, **kwargs)

    builtins.print = print


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    world_size, rank, _ = initialize_distributed_hpu()
    if world_size > 1:
        torch.distributed.init_process_group("hccl", rank=rank, world_size=world_size)
    setup_for_distributed(rank in (0, -1))
    torch.manual_seed(args.seed)
    kinds = torch.randint(0, 4, (512,))
    points = torch.nn.functional.one_hot(kinds, 16).float() * 2 + torch.randn(512, 16)
    device = torch.device("hpu")
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 4)).to(device)
    if world_size > 1:
        model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=100, gradient_as_bucket_view=True)
    optimizer = FusedAdamW(model.parameters(), lr=1e-2)
    clip = FusedClipNorm(model.parameters(), 1.0)
    first = slice(max(rank, 0), None, world_size)
    points, kinds = points[first].to(device, non_blocking=True), kinds[first].to(device, non_blocking=True)
    for _ in range(40):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type="hpu", dtype=torch.bfloat16, enabled=args.autocast):
            loss = torch.nn.functional.cross_entropy(model(points), kinds)
        loss.backward()
        htcore.mark_step()
        clip.clip_norm(model.parameters())
        optimizer.step()
        htcore.mark_step()
    print(f"final loss {loss.item():.5f}")
    assert all(one.dtype is torch.float32 for one in model.parameters())


if __name__ == "__main__":
    os.environ.setdefault("PT_HPU_LAZY_MODE", "1")
    main()
