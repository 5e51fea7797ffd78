"""Measures the cost of the report: the time of a step or a token without records, by module, and by line.

    python benchmarks/watching.py [--rounds N]

It uses one process and one thread, and measures the thread's time. The three variants run in turn, round after round. A
ratio of 1.02 means that the records make it 2 % longer. It takes two minutes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from models import llama_110m, machine, with_past
from networks import Bert

from habana_mp import _core, hmp

STATES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "off": nullcontext,
    "modules": lambda: hmp.watch("modules"),
    "lines": lambda: hmp.watch("lines"),
}


def bert() -> Callable[[], object]:
    """Makes a training step of six layers of width 512 on 4 x 64 words."""
    model = Bert(hidden=512, layers=6, heads=8, words=8192)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    words, labels = torch.randint(0, 8192, (4, 64)), torch.randint(0, 8192, (4, 64))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(words).flatten(0, 1), labels.flatten()).backward()
        with hmp.disable_casts():
            optimizer.step()

    return step


def token() -> Callable[[], object]:
    """Makes the computation of a token by a decoder of 110 M parameters, after 64 words."""
    model = llama_110m().eval()
    with torch.no_grad():
        word, pasts = with_past(model, torch.randint(0, 32_000, (1, 64)))

    @torch.no_grad()
    def step() -> object:
        return model(word, pasts)[0]

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine(busy=True))
    print(
        f"{'case':<20}{'ms':>8}{'calls':>8}"
        + "".join(f"{name:>10}{'middle half':>16}" for name in ("modules", "lines"))
    )
    for make in (bert, token):
        torch.manual_seed(0)
        hmp.convert()
        step = make()
        for _ in range(3):
            for entered in STATES.values():
                with entered():
                    step()
        hmp.reset_report()
        times: dict[str, list[float]] = {name: [] for name in STATES}
        for _ in range(options.rounds):
            for name, entered in STATES.items():
                with entered():
                    begin = time.thread_time()
                    step()
                    times[name].append(time.thread_time() - begin)
        calls = sum(record["calls"] for record in _core.watched_calls()) // (2 * options.rounds)
        hmp.restore()
        cells = ""
        for name in ("modules", "lines"):
            ratios = [watched / plain for watched, plain in zip(times[name], times["off"], strict=True)]
            low, median, high = statistics.quantiles(ratios, n=4)
            cells += f"{median:>10.3f}{f'{low:.3f} to {high:.3f}':>16}"
        print(f"{make.__name__:<20}{1e3 * statistics.median(times['off']):>8.1f}{calls:>8}{cells}", flush=True)


if __name__ == "__main__":
    main()
