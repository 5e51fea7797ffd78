"""A DataLoader whose workers make and augment the items in processes of their own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 8, 8, generator=generator)
        mean, std = torch.full((3, 1, 1), 0.5), torch.full((3, 1, 1), 0.25)
        return (image - mean) / std, index % 5


def collate(items):
    images, targets = zip(*items, strict=True)
    return torch.stack(images), torch.tensor(targets)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Images(), batch_size=8, shuffle=True, num_workers=2, collate_fn=collate)
    for images, targets in loader:
        loss = nn.functional.cross_entropy(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{images.dtype} loss {loss.item()!r}")
