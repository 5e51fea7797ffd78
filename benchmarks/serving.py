"""Times what a service sees: the first request, the tokens after it, and prompts of ten lengths in random order.

    python benchmarks/serving.py [--ways "NAME;..."] [--threads N] [--layers N]

A decoder of 836 M parameters (`--layers 2`: 168 M) answers requests one after the other, each way in a process of its
own. A pause is a call that takes longer than calls like it: tokens are compared with the median token, and a prompt
with the fastest of its length. Calls of the first request do not count as pauses. In the end four threads serve at
once.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from networks import Llama
from states import autocast

from habana_mp import hmp

WAYS = (
    "float32",
    "autocast each",
    "autocast loop",
    "bf16 model",
    "recommended",
    "recommended, bf16 model",
    "half, bf16 model",
)
LENGTHS = (16, 33, 64, 100, 128, 180, 256, 300, 384, 512)


class Service:
    def __init__(self, way: str, layers: int) -> None:
        self.state_of_each = autocast if way == "autocast each" else nullcontext
        self.model = Llama(hidden=2048, layers=layers, heads=16, intermediate=5632).eval()
        if way.endswith("bf16 model"):
            self.model.bfloat16()
        if way.startswith("recommended"):
            # The keys and values are in tuples: they stay as computed.
            hmp.convert(preset="recommended", results="as computed")
        if way.startswith("half"):
            hmp.convert(preset="half")

    def forward(self, words: torch.Tensor, pasts: Any) -> tuple[torch.Tensor, Any, float]:
        begin = time.perf_counter()
        with self.state_of_each():
            scores, pasts = self.model(words, pasts, last=1)
        word = scores[:, -1].argmax(-1, keepdim=True)
        return word, pasts, time.perf_counter() - begin

    def answer(self, length: int, tokens: int) -> tuple[float, list[float]]:
        """Returns the seconds of the prompt and of each token after it."""
        word, pasts, prompt = self.forward(torch.randint(0, 32_000, (1, length)), None)
        seconds = []
        for _ in range(tokens):
            word, pasts, one = self.forward(word, pasts)
            seconds.append(one)
        return prompt, seconds


def seconds_of_a_read(service: Service) -> float:
    """Returns the time of one read of all weights of products, in bfloat16."""
    count = sum(one.numel() for one in service.model.parameters() if one.dim() == 2) // 2
    memory = torch.ones(count)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        torch.dot(memory, memory)
        times.append(time.perf_counter() - begin)
    return min(times)


def tokens_per_second(service: Service, threads: int, around: Any) -> float:
    """Returns how many tokens so many serving threads decode together in a second."""
    tokens = 12

    def serve() -> None:
        with torch.no_grad(), around():
            service.answer(64, tokens)

    servers = [threading.Thread(target=serve) for _ in range(threads)]
    begin = time.perf_counter()
    for one in servers:
        one.start()
    for one in servers:
        one.join()
    return threads * tokens / (time.perf_counter() - begin)


def peak_gigabytes() -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1e6


def measure(way: str, layers: int) -> dict[str, Any]:
    torch.manual_seed(0)
    service = Service(way, layers)
    around: Any = autocast if way == "autocast loop" else nullcontext
    context: AbstractContextManager[Any] = around()
    with torch.no_grad(), context:
        first, tokens = service.answer(128, 24)
        later = statistics.median(tokens[8:])
        again = [service.answer(128, 4) for _ in range(6)]
        order = [length for length in LENGTHS for _ in range(3)]
        random.Random(0).shuffle(order)
        prompts: dict[int, list[float]] = {length: [] for length in LENGTHS}
        all_tokens = tokens[1:] + [one for _, some in again for one in some]
        for length in order:
            prompt, some = service.answer(length, 3)
            prompts[length].append(prompt)
            all_tokens += some
    peak = peak_gigabytes()
    prompts[128] = [one for one, _ in again] + prompts[128]
    return {
        "first": first,
        "tokens": tokens[:5],
        "later": later,
        "again": [one for one, _ in again],
        "prompts": {length: min(times) for length, times in prompts.items()},
        "pause of a token": max(all_tokens) / statistics.median(all_tokens),
        "pause of a prompt": max(max(times) / min(times) for times in prompts.values()),
        "peak": peak,
        "read": seconds_of_a_read(service),
        "one": tokens_per_second(service, 1, around),
        "four": tokens_per_second(service, 4, around),
    }


def in_milliseconds(seconds: list[float]) -> str:
    return " ".join(f"{1e3 * one:.0f}" for one in seconds)


def show(results: dict[str, dict[str, Any]]) -> None:
    rows: list[tuple[str, Any]] = [
        ("first prompt of 128 words, ms", lambda one: in_milliseconds([one["first"]])),
        ("tokens 1 to 5, ms", lambda one: in_milliseconds(one["tokens"])),
        ("later tokens, ms", lambda one: f"{1e3 * one['later']:.1f}"),
        ("a read of the weights, ms", lambda one: f"{1e3 * one['read']:.1f}"),
        ("prompts of 128 words after that, ms", lambda one: in_milliseconds(one["again"])),
        *[(f"prompt of {n} words, ms", lambda one, n=n: in_milliseconds([one["prompts"][n]])) for n in LENGTHS],
        ("longest pause, times a token", lambda one: f"{one['pause of a token']:.2f}"),
        ("longest pause, times a prompt", lambda one: f"{one['pause of a prompt']:.2f}"),
        ("peak, GB", lambda one: f"{one['peak']:.2f}"),
        ("tokens a second, one thread", lambda one: f"{one['one']:.1f}"),
        ("tokens a second, four threads", lambda one: f"{one['four']:.1f}"),
    ]
    print("| |" + "|".join(results) + "|\n|---|" + "---|" * len(results))
    for title, text in rows:
        print(f"| {title} | " + " | ".join(text(one) for one in results.values()) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", default=";".join(WAYS[2:]), metavar="NAME;...", help="of " + "; ".join(WAYS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=15)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.way is not None:
        print(json.dumps(measure(options.way, options.layers)))
        return
    results = {}
    for way in options.ways.split(";"):
        command = [sys.executable, *sys.argv, "--way", way]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        results[way] = json.loads(printed.splitlines()[-1], object_hook=with_numbers)
        print(f"{way}: {results[way]['later'] * 1e3:.1f} ms a token", file=sys.stderr)
    print(f"torch {torch.__version__}, {options.threads} threads, a decoder of {options.layers} layers of 2048\n")
    show(results)


def with_numbers(one: dict[str, Any]) -> dict[Any, Any]:
    return {int(key) if key.isdigit() else key: value for key, value in one.items()}


if __name__ == "__main__":
    main()
