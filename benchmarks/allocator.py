"""Measures the cost of memory in a training step, with malloc's ordinary settings, and set to keep all its memory.

    python benchmarks/allocator.py [--only CASE[,CASE]] [--quick] [--threads N | --busy]

On a CPU torch uses the allocator of the C library. It returns a large block to Linux when the block is freed, and gets
the next large block from Linux page by page. Each contender of benchmarks/models.py runs in processes of its own, with
and without the settings, in turn, round after round; `hmp, none kept` is `hmp.convert(reuse_memory=False)`. A ratio
above 1 means that the step is faster with the settings.
"""

from __future__ import annotations

import argparse

import torch
from models import command, machine
from timing import Elsewhere, run

#: Allocates no block from Linux separately, never returns the heap's end, and requests much memory at once.
KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 46), "MALLOC_TOP_PAD_": str(64 << 20)}


def faults_of_a_step(contender: Elsewhere) -> float:
    before, steps = contender.page_faults(), 3
    contender.time(steps)
    return (contender.page_faults() - before) / (steps + 1)  # one more step runs before the timed ones


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="train-bert,train-vit,train-resnet50,train-llama")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--threads", type=int, default=2, help="default 2")
    parser.add_argument("--busy", action="store_true", help="one thread, processor time")
    options = parser.parse_args()
    torch.set_num_threads(1 if options.busy else options.threads)
    print(machine(busy=options.busy))
    print(
        f"{'case':<16}{'contender':<16}{'ms':>7}{'page faults':>13}{'peak MB':>9}{'keeping all, ms':>17}{'peak MB':>9}"
        f"{'ratio':>7}  middle half"
    )
    for case in options.only.split(","):
        for name in ("FP32", "autocast", "hmp, none kept", "hmp"):
            plain = Elsewhere("plain", command(case, name, busy=options.busy))
            keeping = Elsewhere("keeping", command(case, name, busy=options.busy), **KEEPING)
            run([plain, keeping], rounds=3 if options.quick else 11, target_seconds=0.1)
            ratio, low, high = plain.ratio_to(keeping)
            print(
                f"{case:<16}{name:<16}{plain.median * 1e3:>7.0f}{faults_of_a_step(plain):>13.0f}"
                f"{plain.peak_megabytes():>9.0f}{keeping.median * 1e3:>17.0f}{keeping.peak_megabytes():>9.0f}"
                f"{ratio:>7.2f}  {low:.2f} to {high:.2f}",
                flush=True,
            )
            plain.close()
            keeping.close()


if __name__ == "__main__":
    main()
