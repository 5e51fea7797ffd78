"""How often a record notices that a few of a million values have changed, by its sample alone and with its magnitudes.

    python benchmarks/samples.py [TRIALS]

A call of the same inputs gives these results. They are compared as `hmp.compare` does.
"""

from __future__ import annotations

import sys

import torch

from habana_mp.recording.differences import (
    bound,
    bound_of_means,
    difference,
    difference_of_means,
)
from habana_mp.recording.values import described

COUNT, CHANGED = 1_000_000, (10, 100, 1000)
CHANGES = {
    "set to zero": lambda values: torch.zeros_like(values),
    "1 % larger": lambda values: values * 1.01,
    "1 % of noise": lambda values: values * (1 + 0.01 * torch.randn_like(values)),
}


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    torch.manual_seed(0)
    print(f"{'values':10} {'change':14} {'changed':>8} {'sample alone':>13} {'noticed':>8}")
    for dtype in (torch.float32, torch.bfloat16):
        for name, change in CHANGES.items():
            for changed in CHANGED:
                by_sample = noticed = 0
                for _ in range(trials):
                    values = torch.randn(1000, 1000).to(dtype)
                    other = values.clone()
                    places = torch.randperm(COUNT)[:changed]
                    other.view(-1)[places] = change(values.view(-1)[places].float()).to(dtype)
                    a, b = ({"operation": "", "inputs": [], "results": [described(one, 64)]} for one in (values, other))
                    one, two = a["results"][0], b["results"][0]
                    by_sample += one["values"] != two["values"]
                    noticed += difference(one, two) > bound(a, b) or difference_of_means(one, two) > bound_of_means(
                        a, b
                    )
                shares = f"{by_sample / trials:12.1%} {noticed / trials:8.1%}"
                print(f"{str(dtype).removeprefix('torch.'):10} {name:14} {changed:8} {shares}")


if __name__ == "__main__":
    main()
