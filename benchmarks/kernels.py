"""Compares casts into given memory with torch's `copy_`, `astype` of ml_dtypes and NumPy, and the memory's own speed.

    python benchmarks/kernels.py [--quick] [--only one|strided] [--threads N]

All contenders cast the same arrays in turn, round after round. A ratio is the time of the other contender divided by
the time of the package in the same round, and the result is the median of all rounds. Above 1 the package is faster.
The memory's own speed is the speed of a copy of as many bytes. Since writing and reading are not equally fast, there is
also a loop that reads and writes as much as the cast does, and does nothing else ("shares"). These need a C compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from timing import Contender, run

from habana_mp import hmp, kernels

Array = npt.NDArray[Any]

CASTS = [
    ("float32", "bfloat16"),
    ("bfloat16", "float32"),
    ("float32", "float16"),
    ("float16", "float32"),
    ("bfloat16", "float16"),
    ("float16", "bfloat16"),
]
NUMPY = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
OURS: dict[str, Callable[..., object]] = {
    "float32": kernels.to_float32,
    "float16": kernels.to_float16,
    "bfloat16": kernels.to_bfloat16,
}


def random_array(shape: tuple[int, ...], dtype: str) -> Array:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(NUMPY[dtype])


def tensor_of(array: Array, dtype: str) -> torch.Tensor:
    """Returns a tensor that uses the same memory. For arrays larger than the caches, the pages of an array affect the
    speed most."""
    integers = {2: np.int16, 4: np.int32}
    return torch.from_numpy(array.view(integers[array.itemsize])).view(TORCH[dtype])


def aligned(size: int) -> Array:
    memory = np.ones(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]


def shares_of(source: str, target: str) -> tuple[int, int]:
    """Returns the ratio of the bytes that a cast reads and the bytes that it writes, in whole numbers."""
    sizes = NUMPY[source].itemsize, NUMPY[target].itemsize
    return sizes[0] // min(sizes), sizes[1] // min(sizes)


class MemoryCopy:
    """Copies as many bytes as a cast reads and writes."""

    def __init__(self, folder: str) -> None:
        library = Path(folder) / "memory_copy.so"
        source = Path(__file__).with_name("memory_copy.c")
        flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, "-o", str(library), str(source)], check=True)
        self._move = ctypes.CDLL(str(library)).move
        self._move.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3]

    def contender(self, name: str, total: int, threads: int, *, shares: tuple[int, int] = (1, 1)) -> Contender:
        """Returns a contender that reads and writes ``total`` bytes in these shares. Equal shares are a copy."""
        steps = total // 64 // sum(shares)
        source, target = (aligned(steps * share * 64) for share in shares)
        move = self._move
        return Contender(name, lambda: move(source.ctypes.data, target.ctypes.data, steps, *shares, threads))


def compare(ours: Contender, others: list[Contender], threads: int, rounds: int) -> list[str]:
    """Returns a cell for each of the others, with its time as a multiple of the time of ``ours``."""
    torch.set_num_threads(threads)
    # The previous contender has left its own data in the caches, and its threads are still spinning. The threads of
    # libgomp, which torch uses, spin for milliseconds on a processor that others could use. There are many short
    # rounds, so that another program that takes a processor from two threads does not spoil all rounds.
    run([ours, *others], rounds=rounds, target_seconds=0.002, settle_seconds=0.01)
    return [f"{other.ratio_to(ours)[0]:>12.2f}" for other in others]


def heading(first: str, columns: list[str]) -> None:
    print(f"\n{first:<34} {'threads':>7} {'us':>10} {'GB/s':>7}" + "".join(f" {name:>12}" for name in columns))


def row(first: str, threads: int, ours: Contender, total_bytes: int, cells: list[str]) -> None:
    gigabytes = total_bytes / ours.median / 1e9
    print(f"{first:<34} {threads:>7} {ours.median * 1e6:>10.2f} {gigabytes:>7.1f} " + " ".join(cells), flush=True)


def one_array(copy: MemoryCopy, powers: range, numbers: list[int], rounds: int) -> None:
    for source, target in CASTS:
        shares = shares_of(source, target)
        numpy_name = "x ml_dtypes" if "bfloat16" in (source, target) else "x NumPy"
        heading(f"{source} to {target}", ["x torch", numpy_name, "x copy", "x shares"])
        for power in powers:
            array, out = random_array((2**power,), source), np.zeros(2**power, NUMPY[target])
            tensor, tensor_out = tensor_of(array, source), tensor_of(out, target)
            total = array.nbytes + out.nbytes
            cast = OURS[target]
            for threads in numbers:
                ours = Contender("ours", lambda: cast(array, out, threads))  # noqa: B023 (called in this round only)
                others = [
                    Contender("torch", lambda: tensor_out.copy_(tensor)),  # noqa: B023
                    Contender("NumPy", lambda: np.copyto(out, array, casting="unsafe")),  # noqa: B023
                    copy.contender("copy", total, threads),
                    copy.contender("shares", total, threads, shares=shares),
                ]
                row(f"2^{power} elements", threads, ours, total, compare(ours, others, threads, rounds))


def strided_arrays(numbers: list[int], rounds: int) -> None:
    layouts: list[tuple[str, tuple[int, ...], Callable[[Any], Any], Callable[[Any], Any]]] = [
        ("rows, 1024 x 768 of 2304", (1024, 2304), lambda x: x[:, 768:1536], lambda y: y.reshape(1024, -1)[:, :768]),
        ("transposed, 1024 x 1024", (1024, 1024), lambda x: x.T, lambda y: y),
        ("transposed, 4000 x 4000", (4000, 4000), lambda x: x.T, lambda y: y),
        (
            "channels last, 8 x 64 x 56 x 56",
            (8, 56, 56, 64),
            lambda x: x.transpose(0, 3, 1, 2),
            lambda y: y.reshape(8, 64, 56, 56),
        ),
        ("every other, 512 x 512 of 1024", (512, 1024), lambda x: x[:, ::2], lambda y: y[:, :512]),
    ]
    for source, target in CASTS[:2]:
        heading(f"{source} to {target}", ["x torch", "x ml_dtypes"])
        for name, shape, view, out_view in layouts:
            array, memory = view(random_array(shape, source)), np.zeros(shape, NUMPY[target])
            out = out_view(memory)
            bits, out_bits = (x.view(np.dtype(f"i{x.itemsize}")) for x in (array, out))
            tensor, tensor_out = (
                torch.from_numpy(bits).view(TORCH[source]),
                torch.from_numpy(out_bits).view(TORCH[target]),
            )
            cast = OURS[target]
            for threads in numbers:
                ours = Contender("ours", lambda: cast(array, out, threads))  # noqa: B023
                others = [
                    Contender("torch", lambda: tensor_out.copy_(tensor)),  # noqa: B023
                    Contender("NumPy", lambda: np.copyto(out, array, casting="unsafe")),  # noqa: B023
                ]
                total = array.size * (array.itemsize + out.itemsize)
                row(name, threads, ours, total, compare(ours, others, threads, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--rounds", type=int, help="rounds for each figure (default 31, quick 11)")
    parser.add_argument("--threads", type=int, help="one number of threads alone (default 1 and 2)")
    parser.add_argument("--only", choices=["one", "strided"], help="one part alone")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (11 if arguments.quick else 31)
    numbers = [arguments.threads] if arguments.threads else [1, 2]
    powers = range(14, 27, 4 if arguments.quick else 2)

    hmp.convert()  # from here on the package's loops run on torch's threads
    hmp.restore()
    print(f"instruction set: {kernels.path()}, torch {torch.__version__}, {rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        copy = MemoryCopy(folder)
        if arguments.only in (None, "one"):
            one_array(copy, powers, numbers, rounds)
        if arguments.only in (None, "strided"):
            strided_arrays(numbers, rounds)


if __name__ == "__main__":
    main()
