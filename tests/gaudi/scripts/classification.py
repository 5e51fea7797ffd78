"""Images of noisy stripes are classified, by one process or by several: in the style of Gaudi's ResNet folder."""

import argparse
import os

import habana_frameworks.torch.core as htcore
import torch
import torch.distributed as dist
from habana_dataloader import HabanaDataLoader
from habana_frameworks.torch.distributed.hccl import initialize_distributed_hpu
from habana_frameworks.torch.utils.library_loader import load_habana_module
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler


def images(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    waves = torch.sin(torch.arange(12.0) * (1 + labels[:, None]) * 0.5)
    noise = torch.randn(count, 1, 12, 12, generator=generator) * 0.3
    return TensorDataset(waves[:, None, None, :] + noise, labels)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(8 * 36, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def permute_params(model: nn.Module) -> None:
    """Gaudi wants the filters of convolutions last, where its own pass does not see to that."""
    if htcore.is_enabled_weight_permute_pass() is True:
        return
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 4:
                parameter.data = parameter.data.permute((2, 3, 1, 0))


def train_one_epoch(model, criterion, optimizer, loader, device, args) -> float:
    model.train()
    total = torch.zeros(1, device=device)
    for loaded, labels in loader:
        image = loaded.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        target = labels.to(device, non_blocking=True)
        loss = criterion(model(image), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        htcore.mark_step()
        if args.is_hmp:
            with args.hmp.disable_casts():
                optimizer.step()
        else:
            optimizer.step()
        htcore.mark_step()
        total += loss.detach()
    return (total / len(loader)).item()


def evaluate(model, loader, device) -> float:
    model.eval()
    right = torch.zeros(1, device=device)
    with torch.no_grad():
        for image, target in loader:
            right += (model(image.to(device)).argmax(1) == target.to(device)).sum()
    return (right / len(loader.dataset)).item()


def main(args: argparse.Namespace) -> None:
    load_habana_module()
    args.world_size, args.rank, args.local_rank = initialize_distributed_hpu()
    args.distributed = args.world_size > 1
    if args.distributed:
        dist.init_process_group(backend="hccl", rank=args.rank, world_size=args.world_size)
    if args.is_hmp:
        from habana_frameworks.torch.hpex import hmp

        args.hmp = hmp
        hmp.convert(
            opt_level=args.hmp_opt_level,
            bf16_file_path=args.hmp_bf16,
            fp32_file_path=args.hmp_fp32,
            isVerbose=args.hmp_verbose,
        )
    device = torch.device(args.device)
    torch.manual_seed(0)
    if args.device == "hpu":
        torch.hpu.random.manual_seed_all(0)
    train, test = images(512, 0), images(256, 1)
    sampler = DistributedSampler(train, shuffle=False) if args.distributed else None
    loader = HabanaDataLoader(
        train, batch_size=32, sampler=sampler, num_workers=1, pin_memory=True, pin_memory_device="hpu", drop_last=True
    )
    model = Network().to(device)
    permute_params(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    if args.distributed:
        model = DistributedDataParallel(model, bucket_cap_mb=100, broadcast_buffers=False, gradient_as_bucket_view=True)
    assert next(model.parameters()).device.type == args.device
    for epoch in range(3):
        loss = train_one_epoch(model, nn.CrossEntropyLoss(), optimizer, loader, device, args)
        if args.rank in (-1, 0):
            print(f"epoch {epoch} loss {loss:.5f}")
    accuracy = evaluate(model, HabanaDataLoader(test, batch_size=64), device)
    if args.rank in (-1, 0):
        print(f"accuracy {accuracy:.4f}")
        torch.save(model.state_dict(), args.checkpoint)
        torch.load(args.checkpoint, map_location=device)
    if args.distributed:
        weight = model.module.head.weight.detach().clone()
        dist.all_reduce(weight)
        assert torch.allclose(weight / args.world_size, model.module.head.weight), "the processes have parted"
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="hpu")
    parser.add_argument("--hmp", dest="is_hmp", action="store_true")
    parser.add_argument("--hmp-bf16", default="")
    parser.add_argument("--hmp-fp32", default="")
    parser.add_argument("--hmp-opt-level", default="O1")
    parser.add_argument("--hmp-verbose", action="store_true")
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    os.environ.setdefault("PT_HPU_LAZY_MODE", "1")
    main(parser.parse_args())
