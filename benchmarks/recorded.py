"""The cost of a record, and how often it notices that a few of a million values have changed.

    python benchmarks/recorded.py [--rounds N | --changed TRIALS]

A step is a training step of BERT base with 4 x 512 words. With --changed, a call of the same inputs gives results that
differ in a few values; they are compared as `hmp.compare` does, by the sample alone and with the magnitudes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from models import machine
from networks import Bert

from habana_mp import hmp
from habana_mp.recording.differences import bound, bound_of_means, difference, difference_of_means
from habana_mp.recording.recorder import described

COUNT, CHANGED = 1_000_000, (10, 100, 1000)
CHANGES = {
    "set to zero": lambda values: torch.zeros_like(values),
    "1 % larger": lambda values: values * 1.01,
    "1 % of noise": lambda values: values * (1 + 0.01 * torch.randn_like(values)),
}


def notice(trials: int) -> None:
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
                    by_mean = difference_of_means(one, two) > bound_of_means(a, b)
                    noticed += by_mean or difference(one, two) > bound(a, b)
                shares = f"{by_sample / trials:12.1%} {noticed / trials:8.1%}"
                print(f"{str(dtype).removeprefix('torch.'):10} {name:14} {changed:8} {shares}")


def cost(rounds: int) -> None:
    hmp.convert(preset="recommended")
    model, words = Bert(768, 12, 12), torch.randint(0, 30_522, (4, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def seconds() -> float:
        begin = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()
        optimizer.step()
        return time.perf_counter() - begin

    seconds()
    plain, recorded = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            plain.append(seconds())
            with hmp.record(folder):
                recorded.append(seconds())
        text = (Path(folder) / "main.jsonl").read_text("utf-8")
    results = [one for line in text.splitlines()[1:] for one in json.loads(line)["results"]]
    sizes = {"bfloat16": 2, "bool": 1, "int64": 8}
    size = sum(math.prod(one["sizes"]) * sizes.get(one["dtype"], 4) for one in results)
    print(machine(busy=True))
    print(f"a step {statistics.median(plain):.2f} s, recorded {statistics.median(recorded):.2f} s: ", end="")
    print(f"{statistics.median(r / p for r, p in zip(recorded, plain, strict=True)):.2f} times")
    print(f"{len(text) / 1e6:.2f} MB of {size / 1e9:.2f} GB of results: {len(text) / size:.2%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--changed", type=int, metavar="TRIALS", help="so many trials for each row")
    given = parser.parse_args()
    torch.manual_seed(0)
    if given.changed:
        notice(given.changed)
    else:
        cost(given.rounds)


if __name__ == "__main__":
    main()
