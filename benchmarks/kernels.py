"""The casts against torch's `copy_`, ml_dtypes' and NumPy's `astype`: how many times as fast, all into given memory.

python benchmarks/kernels.py [--quick]

Every contender casts the same array in turn, round after round; a figure is the median of a contender's rounds. The
ratios are the others' time over ours: above 1 we are faster.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import ml_dtypes
import numpy as np
import torch

from habana_mp import kernels

CASTS = [("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float16"), ("float16", "float32")]
NUMPY = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
OURS: dict[str, Callable[..., object]] = {
    "float32": kernels.to_float32,
    "float16": kernels.to_float16,
    "bfloat16": kernels.to_bfloat16,
}


def seconds(function: Callable[[], object], repeats: int) -> float:
    # Whoever came before has left its own data in the caches, and its threads awake and watching for more: those of
    # libgomp, which torch uses, do so for milliseconds, on a processor that others could use.
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        function()
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - start) / repeats


def contenders(source: str, target: str, size: int, threads: int) -> dict[str, Callable[[], object]]:
    array = np.random.default_rng(0).standard_normal(size, dtype=np.float32).astype(NUMPY[source])
    out = np.zeros(size, NUMPY[target])
    # the very same memory: which pages an array got makes more of a difference beyond the caches than who casts it
    integers = {2: np.int16, 4: np.int32}
    tensor = torch.from_numpy(array.view(integers[array.itemsize])).view(TORCH[source])
    tensor_out = torch.from_numpy(out.view(integers[out.itemsize])).view(TORCH[target])
    ours = OURS[target]
    name = "NumPy" if "bfloat16" not in (source, target) else "ml_dtypes"
    return {
        "ours": lambda: ours(array, out, threads),
        "torch": lambda: tensor_out.copy_(tensor),
        name: lambda: np.copyto(out, array, casting="unsafe"),
    }


def measure(source: str, target: str, size: int, threads: int, rounds: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    functions = contenders(source, target, size, threads)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            times[name].append(seconds(function, max(1, min(2000, 2**23 // size))))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--rounds", type=int, help="rounds for each figure (default 15, quick 5)")
    parser.add_argument("--cast", help="one cast alone, such as float32-bfloat16")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (5 if arguments.quick else 15)
    powers = range(14, 27, 4 if arguments.quick else 2)
    casts = [pair for pair in CASTS if arguments.cast in (None, "-".join(pair))]

    print(f"instruction set: {kernels.path()}, torch {torch.__version__}, {rounds} rounds")
    for source, target in casts:
        other = "NumPy" if "bfloat16" not in (source, target) else "ml_dtypes"
        print(f"\n{source} -> {target}")
        print(f"{'elements':>10} {'threads':>8} {'ours us':>10} {'GB/s':>7} {'x torch':>9} {'x ' + other:>12}")
        size_of_both = NUMPY[source].itemsize + NUMPY[target].itemsize
        for power in powers:
            for threads in (1, 2):
                size = 2**power
                times = measure(source, target, size, threads, rounds)
                ours = times["ours"]
                gigabytes = size * size_of_both / ours / 1e9
                print(
                    f"{'2^' + str(power):>10} {threads:>8} {ours * 1e6:>10.2f} {gigabytes:>7.1f} "
                    f"{times['torch'] / ours:>9.2f} {times[other] / ours:>12.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
