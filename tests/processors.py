"""The tests of ``make test`` as other processors would run them: one line for each processor.

``python tests/processors.py`` runs them all, ``--short`` one of some, another part of them for each processor. oneDNN,
torch's own kernels and ours are each told to do without the instructions that such a processor lacks.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from habana_mp import _core

#: As a short run takes one of so many. Not a divisor of what tests' parameters come in.
ONE_OF = 59


class Processor(NamedTuple):
    """What is allowed at most; nothing is said of what is empty. ``needs`` names kernels of ours that must run here."""

    onednn: str
    torch: str
    kernels: str
    needs: str

    def can_run(self) -> bool:
        return not self.needs or self.needs in _core.kernels_paths()

    def environment(self) -> dict[str, str]:
        """Returns all environment variables of a process that runs as on this processor."""
        return {name: value for name, value in os.environ.items() if name not in NAMES} | self.settings()

    def settings(self) -> dict[str, str]:
        """Returns the environment variables that stand for the processor."""
        found = {
            "ONEDNN_MAX_CPU_ISA": self.onednn,
            "ATEN_CPU_CAPABILITY": self.torch,
            "HABANA_MP_KERNELS": self.kernels,
            # Else torch's float32 products keep AVX-512.
            "MKL_ENABLE_INSTRUCTIONS": "AVX2" if self.torch == "avx2" else "",
        }
        return {name: value for name, value in found.items() if value}


PROCESSORS = [
    Processor("AVX2", "avx2", "avx2", "avx2"),
    Processor("AVX512_CORE", "avx512", "avx512", "avx512"),
    Processor("AVX512_CORE_BF16", "avx512", "avx512_bf16", "avx512_bf16"),
    Processor("", "", "avx512_bf16", "amx"),
]
NAMES = frozenset().union(*(one.settings() for one in PROCESSORS))


def run(processor: Processor, part: str | None, workers: int) -> tuple[int, str]:
    """The exit code, and all that pytest said."""
    some = ["-n", str(workers), "--dist", "worksteal", "-m", "not slow", *(["--part", part] if part else [])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *some],
        env=processor.environment(),
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help=f"one of {ONE_OF} tests")
    parser.add_argument("--workers", type=int, default=2, help="tests that run at once")
    options = parser.parse_args()
    failed = False
    line = "{:<18}{:<10}{:<13}{}"
    print(line.format("oneDNN", "torch", "our kernels", "result"))
    for i, processor in enumerate(PROCESSORS):
        if not processor.can_run():
            result, output = "not on this processor", ""
        else:
            begin = time.monotonic()
            code, output = run(processor, f"{i * 5}/{ONE_OF}" if options.short else None, options.workers)
            summary = output.splitlines()[-1].split(" in ")[0] if output else "nothing"
            result = f"{summary}, {time.monotonic() - begin:.0f} s"
            if code == 0:
                output = ""
            else:
                result += f", exit code {code}"
                failed = True
        print(line.format(*(one or "as it is" for one in processor[:3]), result), flush=True)
        if output:
            print(output, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
