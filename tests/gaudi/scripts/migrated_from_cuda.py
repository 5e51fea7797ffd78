"""A script for CUDA that `gpu_migration` runs on Gaudi: amp with a scaler, DDP, and questions to torch.cuda."""

import argparse
import os

import torch
from torch.nn.parallel import DistributedDataParallel

if os.environ.get("PT_HPU_GPU_MIGRATION") != "1":
    import habana_frameworks.torch.gpu_migration  # noqa: F401


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() >= 1
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    is_distributed = "WORLD_SIZE" in os.environ
    torch.cuda.set_device(0)
    if is_distributed:
        torch.distributed.init_process_group(backend="nccl")
    torch.cuda.manual_seed_all(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True
    images = torch.randn(64, 3, 8, 8)
    labels = (images.mean((1, 2, 3)) > 0).long()
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 2)
    ).cuda()
    if is_distributed:
        model = DistributedDataParallel(model, device_ids=[0], output_device=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scaler = torch.cuda.amp.GradScaler(enabled=args.amp)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    stream = torch.cuda.Stream()
    start.record()
    for _ in range(30):
        with torch.cuda.stream(stream):
            batch = images.cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)
        optimizer.zero_grad()
        with torch.cuda.amp.autocast(enabled=args.amp):
            output = model(batch)
            loss = torch.nn.functional.cross_entropy(output, labels.cuda())
        assert output.dtype is (torch.bfloat16 if args.amp else torch.float32), output.dtype
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 0
    assert torch.cuda.max_memory_allocated() > 0
    assert scaler.get_scale() == 1.0
    if local_rank == 0:
        print(f"final loss {loss.item():.5f} on {torch.cuda.get_device_name(0)}")


if __name__ == "__main__":
    main()
