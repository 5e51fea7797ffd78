"""Measures the cost of the guard: the time of a step of BERT or a token of a decoder with and without guard=True.

    python benchmarks/guard.py [--rounds N]

It uses one process and one thread, and measures the thread's time. A ratio of 1.01 means that the guard makes it 1 %
longer. In each round some steps run without the guard, with it, and without it again. Since the guard checks 1 % of the
calls, a single step would mean little. It takes some minutes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from models import machine
from transformers import BertConfig, BertForMaskedLM
from watching import token

from habana_mp import hmp
from habana_mp.reporting.guard import guarding


def bert() -> Callable[[], object]:
    """Makes a training step of six layers of width 512 on 4 x 64 words."""
    model = BertForMaskedLM(
        BertConfig(vocab_size=8192, hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    words, labels = torch.randint(0, 8192, (4, 64)), torch.randint(0, 8192, (4, 64))

    def step() -> None:
        optimizer.zero_grad()
        model(words, labels=labels).loss.backward()
        optimizer.step()

    return step


def seconds_of(step: Callable[[], object], steps: int, *, guarded: bool) -> float:
    guarding.of_convert(guarded)
    step()
    begin = time.thread_time()
    for _ in range(steps):
        step()
    return time.thread_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--steps", type=int, default=5, help="steps without, with, and without a guard in each round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine(busy=True))
    print(f"{'case':<10}{'ms':>8}{'guarded':>10}{'middle half':>18}{'the same twice':>16}")
    for make in (bert, token):
        torch.manual_seed(0)
        hmp.convert()
        step = make()
        seconds_of(step, options.steps, guarded=True)
        ratios: list[float] = []
        noise: list[float] = []
        plain: list[float] = []
        for _ in range(options.rounds):
            before, checked, after = (seconds_of(step, options.steps, guarded=on) for on in (False, True, False))
            ratios.append(2 * checked / (before + after))
            noise.append(after / before)
            plain.append(before / options.steps)
        hmp.restore()
        low, median, high = statistics.quantiles(ratios, n=4)
        print(
            f"{make.__name__:<10}{1e3 * statistics.median(plain):>8.1f}{median:>10.4f}{f'{low:.4f} to {high:.4f}':>18}"
            f"{statistics.median(noise):>16.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
