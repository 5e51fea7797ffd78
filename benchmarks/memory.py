"""The peak memory of a process that runs a model, each way in a process of its own.

    python benchmarks/memory.py

A decoder of 110 M parameters reads 64 words and generates 4 tokens, or trains three steps of 2 x 128 words with AdamW.
The peak is that of the whole process (`ru_maxrss`), torch and Python included.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys

import torch
from networks import Llama
from torch import nn

from habana_mp import hmp

WAYS = ("float32", "torch.autocast", "recommended", "bfloat16 model")


def run(task: str, way: str) -> None:
    if way == "recommended":
        hmp.convert(preset="recommended")
    model: nn.Module = Llama(hidden=768, layers=12, heads=12, intermediate=2048)
    if way == "bfloat16 model":
        model = model.bfloat16()
    region = torch.autocast("cpu", torch.bfloat16) if way == "torch.autocast" else contextlib.nullcontext()
    if task == "generate":
        words = torch.randint(0, 1000, (1, 64))
        with torch.no_grad(), region:
            for _ in range(4):
                words = torch.cat([words, model(words)[0][:, -1:].argmax(-1)], 1)
        return
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        words = torch.randint(0, 1000, (2, 129))
        with region:
            logits, _ = model(words[:, :-1])
        nn.functional.cross_entropy(logits.float().flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    if sys.argv[1:]:
        run(*sys.argv[1:])
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
        return
    print("| peak, GB |", " | ".join(WAYS), "|\n|" + "---|" * (1 + len(WAYS)))
    for task in ("generate", "train"):
        command = [sys.executable, __file__, task]
        peaks = [subprocess.run([*command, way], check=True, capture_output=True, text=True).stdout for way in WAYS]
        print(f"| {task} |", " | ".join(f"{float(one):.2f}" for one in peaks), "|")


if __name__ == "__main__":
    main()
