"""Handwritten digits: a small CNN trained in FP32 and in mixed precision, side by side.

Run it with ``make demo``, or ``python examples/digits.py --epochs 4 --seeds 1``. It needs scikit-learn:
``pip install ".[examples]"``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from habana_mp import hmp

LISTS = Path(__file__).parent / "lists"

#: What is compared with FP32: the arguments of ``hmp.convert``.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "default lists": {},
    "within modules": {"within": "modules"},
    "own lists": {"bf16_file_path": LISTS / "digits_bf16.txt", "fp32_file_path": LISTS / "digits_fp32.txt"},
    "ResNet50 preset": {"preset": "resnet50"},
    "O2": {"opt_level": "O2"},
}


@dataclass(frozen=True)
class Result:
    """How one configuration did on digits that it was not trained on: the mean over the seeds."""

    accuracy: float
    loss: float


class Network(nn.Sequential):
    """Two convolutions with batch norm, and a linear layer on top."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 2 * 2, 10),
        )


def load_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels, every other one for testing."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    return x[::2], y[::2], x[1::2], y[1::2]


def train(seed: int, epochs: int, batch: int = 64) -> Result:
    """Nothing here knows of precisions, except for the line around the optimizer."""
    torch.manual_seed(seed)
    x, y, test_x, test_y = load_data()
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for chosen in torch.randperm(len(x)).split(batch):
            loss = F.cross_entropy(model(x[chosen]), y[chosen])
            optimizer.zero_grad()
            loss.backward()
            with hmp.disable_casts():
                optimizer.step()
    model.eval()
    with torch.no_grad():
        scores = model(test_x)
        loss = F.cross_entropy(scores, test_y)
        accuracy = (scores.argmax(1) == test_y).float().mean()
    return Result(accuracy.item(), loss.item())


def train_seeds(seeds: int, epochs: int) -> Result:
    results = [train(seed, epochs) for seed in range(seeds)]
    return Result(sum(r.accuracy for r in results) / seeds, sum(r.loss for r in results) / seeds)


def main(arguments: Sequence[str] | None = None) -> dict[str, Result]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=2, help="how many trainings each figure is the mean of")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # The model is too small for more.

    results = {"FP32": train_seeds(options.seeds, options.epochs)}
    reports: dict[str, hmp.Report] = {}
    for name, configuration in CONFIGURATIONS.items():
        hmp.reset_report()
        hmp.convert(**configuration)
        try:
            results[name] = train_seeds(options.seeds, options.epochs)
        finally:
            hmp.restore()
        reports[name] = hmp.report(show=False)

    print(f"{'':<17}  accuracy  of FP32's  test loss")
    for name, result in results.items():
        ratio = result.accuracy / results["FP32"].accuracy
        print(f"{name:<17}  {result.accuracy:8.2%}  {ratio:9.2%}  {result.loss:9.4f}")
    print("\nWhat ran in which precision under the default lists:\n")
    print(reports["default lists"])
    return results


if __name__ == "__main__":
    main()
