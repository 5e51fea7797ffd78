"""Boxes are found in images: a detector of one shot with a loss in float32, in the style of Gaudi's SSD folder."""

import argparse
import math
from contextlib import nullcontext

import habana_frameworks.torch.core as htcore
import habana_frameworks.torch.utils.debug as htdebug
import torch
import torch.nn.functional as F
from habana_dataloader import HabanaDataLoader
from habana_frameworks.torch.hpex.kernels import CustomNms
from habana_frameworks.torch.hpex.optimizers import FusedSGD
from habana_frameworks.torch.utils.library_loader import is_habana_avaialble, load_habana_module
from torch import nn
from torch.utils.data import Dataset

SIZE, CELLS, SIDES = 32, 8, (8.0, 14.0)


class Squares(Dataset):
    """Bright and dark rectangles on noise; class 0 is the background."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.randn(count, 1, SIZE, SIZE, generator=generator) * 0.2
        self.boxes, self.labels = torch.zeros(count, 2, 4), torch.zeros(count, 2, dtype=torch.long)
        for i in range(count):
            for half in range(2):  # one on the left, one on the right
                width, height = (int(one) for one in torch.randint(7, 14, (2,), generator=generator))
                left = int(torch.randint(0, 16 - width, (1,), generator=generator)) + 16 * half
                top = int(torch.randint(0, SIZE - height, (1,), generator=generator))
                label = int(torch.randint(1, 3, (1,), generator=generator))
                self.images[i, 0, top : top + height, left : left + width] += 1.5 if label == 1 else -1.5
                self.boxes[i, half] = torch.tensor([left, top, left + width, top + height])
                self.labels[i, half] = label

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.images[index], self.boxes[index], self.labels[index]


def default_boxes() -> torch.Tensor:
    """Of each cell, around its middle: x, y, width, height."""
    step = SIZE / CELLS
    middles = [(x + 0.5) * step for x in range(CELLS)]
    return torch.tensor([[x, y, side, side] for y in middles for x in middles for side in SIDES])


def corners(boxes: torch.Tensor) -> torch.Tensor:
    return torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def overlaps(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    first = torch.maximum(ours[:, None, :2], theirs[None, :, :2])
    last = torch.minimum(ours[:, None, 2:], theirs[None, :, 2:])
    common = (last - first).clamp(min=0).prod(-1)
    areas = [(one[:, 2:] - one[:, :2]).prod(-1) for one in (ours, theirs)]
    return common / (areas[0][:, None] + areas[1] - common)


class Encoder:
    """Which default box is to find what, and by how much it is to be moved."""

    def __init__(self, device: torch.device) -> None:
        self.defaults = default_boxes().to(device)

    def encode(self, boxes: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        quality, which = overlaps(corners(self.defaults), boxes).max(1)
        best = overlaps(corners(self.defaults), boxes).argmax(0)
        which[best] = torch.arange(len(boxes), device=which.device)
        quality[best] = 1.0
        box = boxes[which]
        middle, sides = (box[:, :2] + box[:, 2:]) / 2, box[:, 2:] - box[:, :2]
        offsets = torch.cat(
            [(middle - self.defaults[:, :2]) / self.defaults[:, 2:], (sides / self.defaults[:, 2:]).log()], 1
        )
        return offsets, torch.where(quality > 0.5, labels[which], 0)

    def decode(self, offsets: torch.Tensor) -> torch.Tensor:
        middle = offsets[:, :2] * self.defaults[:, 2:] + self.defaults[:, :2]
        return corners(torch.cat([middle, offsets[:, 2:].exp() * self.defaults[:, 2:]], 1))


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def block(before: int, after: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU(inplace=True))

        self.features = nn.Sequential(block(1, 16), block(16, 32), nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(True))
        self.offsets = nn.Conv2d(32, len(SIDES) * 4, 3, padding=1)
        self.classes = nn.Conv2d(32, len(SIDES) * 3, 3, padding=1)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.features(images)
        offsets, classes = self.offsets(found), self.classes(found)
        batch = len(images)
        return (
            offsets.permute(0, 2, 3, 1).reshape(batch, -1, 4),
            classes.permute(0, 2, 3, 1).reshape(batch, -1, 3),
        )


class Loss(nn.Module):
    """Of the boxes that are to find something, and of three times as many of the worst others."""

    def __init__(self, hmp) -> None:
        super().__init__()
        self.hmp = hmp

    def forward(self, offsets, classes, wanted_offsets, wanted_classes):
        with self.hmp.disable_casts() if self.hmp else nullcontext():
            return self.value(offsets.float(), classes.float(), wanted_offsets, wanted_classes)

    def value(self, offsets, classes, wanted_offsets, wanted_classes):
        finds = wanted_classes > 0
        count = finds.sum(1, keepdim=True)
        of_boxes = (F.smooth_l1_loss(offsets, wanted_offsets, reduction="none").sum(2) * finds).sum(1)
        of_classes = F.cross_entropy(classes.transpose(1, 2), wanted_classes, reduction="none")
        worst = of_classes.detach().masked_fill(finds, 0).sort(1, descending=True)[1].sort(1)[1]
        of_classes = (of_classes * (finds | (worst < 3 * count))).sum(1)
        assert of_boxes.dtype is of_classes.dtype is torch.float32
        return ((of_boxes + of_classes) / count.squeeze(1)).mean()


@torch.no_grad()
def evaluate(model, data, encoder, device) -> float:
    """The share of what is there that is found, with its class."""
    model.eval()
    nms, found, total = CustomNms(), 0, 0
    for image, boxes, labels in HabanaDataLoader(data, batch_size=32):
        offsets, classes = model(image.to(device))
        for offset, logits, wanted, label in zip(offsets.float(), classes.float(), boxes, labels, strict=True):
            scores, kinds = logits.softmax(1).max(1)
            places = encoder.decode(offset)
            some = torch.nonzero((kinds > 0) & (scores > 0.3)).squeeze(1)
            kept = some[nms.batched_nms(places[some], scores[some], kinds[some], 0.5)]
            total += len(label)
            if len(kept):
                quality, which = overlaps(wanted.to(device), places[kept]).max(1)
                found += int(((quality > 0.5) & (kinds[kept][which] == label.to(device))).sum())
    return found / total


def main(args: argparse.Namespace) -> None:
    load_habana_module()
    assert is_habana_avaialble()
    assert htdebug._is_enabled_synapse_layout_handling()
    hmp = None
    if args.hmp:
        from habana_frameworks.torch.hpex import hmp

        hmp.convert(opt_level="O1", bf16_file_path=args.hmp_bf16, fp32_file_path=args.hmp_fp32, isVerbose=0)
    device = torch.device("hpu")
    torch.manual_seed(args.seed)
    torch.hpu.disable_dynamic_shape()
    train = HabanaDataLoader(Squares(384, 0), batch_size=16, shuffle=True, drop_last=True)
    model, encoder, criterion = Detector().to(device), Encoder(device), Loss(hmp)
    optimizer = FusedSGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / (args.epochs * len(train))))
    )
    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros((), device=device)
        for image, boxes, labels in train:
            with hmp.disable_casts() if hmp else nullcontext():
                pairs = [encoder.encode(*one) for one in zip(boxes.to(device), labels.to(device), strict=True)]
                offsets, classes = (torch.stack(one) for one in zip(*pairs, strict=True))
            loss = criterion(*model(image.to(device, non_blocking=True)), offsets, classes)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            htcore.mark_step()
            with hmp.disable_casts() if hmp else nullcontext():
                torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
            htcore.mark_step()
            schedule.step()
            total += loss.detach()
        print(f"epoch {epoch} final loss {total.item() / len(train):.4f}")
    torch.hpu.synchronize()
    print(f"recall {evaluate(model, Squares(128, 1), encoder, device):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hmp", action="store_true")
    parser.add_argument("--hmp-bf16", default=None)
    parser.add_argument("--hmp-fp32", default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=8)
    main(parser.parse_args())
