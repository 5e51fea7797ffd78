"""A diffusion model that was written for CUDA trains with amp and a scaler."""

import argparse
import math

import habana_frameworks.torch.gpu_migration  # noqa: F401  (it maps CUDA)
import torch
from torch import nn

STEPS = 50


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm, self.time = nn.GroupNorm(4, size), nn.Linear(32, size)
        self.first, self.second = nn.Conv2d(size, size, 3, padding=1), nn.Conv2d(size, size, 3, padding=1)

    def forward(self, x, time):
        hidden = self.first(nn.functional.silu(self.norm(x))) + self.time(time)[:, :, None, None]
        return x + self.second(nn.functional.silu(hidden))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.begin, self.end = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(32, 1, 3, padding=1)
        self.down, self.middle, self.up = Block(16), Block(16), Block(16)

    def forward(self, x, time):
        waves = torch.exp(-math.log(1000) * torch.arange(16, device=x.device) / 16)
        angles = time[:, None].float() * waves[None]
        time = torch.cat((angles.sin(), angles.cos()), -1)
        first = self.down(self.begin(x), time)
        second = self.middle(nn.functional.avg_pool2d(first, 2), time)
        second = self.up(nn.functional.interpolate(second, scale_factor=2, mode="nearest"), time)
        return self.end(torch.cat((first, second), 1))


def pictures(count: int) -> torch.Tensor:
    """Returns bright halves on a dark ground."""
    result = -torch.ones(count, 1, 8, 8)
    for number, side in enumerate(torch.randint(0, 2, (count,)).tolist()):
        result[number, :, :, 4 * side : 4 * side + 4] = 1
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert device.type == "cuda"
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.cuda.manual_seed(args.seed), torch.manual_seed(args.seed)
    alphas = torch.cumprod(1 - torch.linspace(1e-3, 0.15, STEPS, device=device), 0)
    data = pictures(64).to(device, non_blocking=True)
    model = UNet().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.cuda.amp.GradScaler(enabled=args.amp)
    losses = []
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(80):
        time = torch.randint(0, STEPS, (len(data),), device=device)
        noise = torch.randn_like(data)
        level = alphas[time][:, None, None, None]
        with torch.cuda.amp.autocast(enabled=args.amp):
            found = model(level.sqrt() * data + (1 - level).sqrt() * noise, time)
            loss = nn.functional.mse_loss(found.float(), noise)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    assert loss.is_cuda
    assert loss.dtype is torch.float32
    assert torch.cuda.max_memory_allocated() > 0
    print(f"final loss {torch.stack(losses[-50:]).mean().item():.5f}")


if __name__ == "__main__":
    main()
