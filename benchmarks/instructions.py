"""What one call costs in instructions, which no noise changes: those of calls.py, counted by callgrind.

    python benchmarks/instructions.py

Less than a minute; needs valgrind and a C compiler. The emulated
processor has AVX2: what needs more is not counted here.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from calls import cases
from states import autocast, converted

MARKS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; }
void zero(void) { CALLGRIND_ZERO_STATS; }
void dump(const char* name) { CALLGRIND_DUMP_STATS_AT(name); }
"""
CALLS = 1000
STATES = {"autocast": autocast, "hmp": converted}


def count_all(library: str) -> None:
    """Within callgrind: one dump for each case, named for it."""
    marks = ctypes.CDLL(library)
    torch.set_num_threads(1)
    marks.begin()
    for case, grad, name, call in cases():
        for state, entered in STATES.items():
            with torch.set_grad_enabled(grad), entered():
                for _ in range(50):
                    call()
                marks.zero()
                for _ in range(CALLS):
                    call()
                marks.dump(f"{case}|{name}|{grad}|{state}".encode())


def counts_in(folder: Path) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for file in folder.glob("counts*"):
        text = file.read_text("utf-8", errors="replace")
        trigger = re.search(r"^desc: Trigger: Client Request: (.*)\|(.*)$", text, re.MULTILINE)
        total = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
        if trigger and total:
            counts.setdefault(trigger[1], {})[trigger[2]] = int(total[1]) // CALLS
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--within", help=argparse.SUPPRESS)
    library = parser.parse_args().within
    if library:
        count_all(library)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "marks.c").write_text(MARKS, "utf-8")
        marks = folder / "marks.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", marks, folder / "marks.c"], check=True)
        callgrind = ["valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no"]
        callgrind.append(f"--callgrind-out-file={folder / 'counts'}")
        this = [sys.executable, "-W", "ignore", __file__, "--within", str(marks)]
        subprocess.run([*callgrind, *this], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        print(f"torch {torch.__version__}, one thread, 4x16 tensors; instructions of a call")
        print(f"{'case':<22}{'operation':<14}{'grad':<6}{'autocast':>10}{'hmp':>10}{'ratio':>8}")
        for key, found in sorted(counts_in(folder).items(), reverse=True):
            case, operation, grad = key.split("|")
            peer, ours = found["autocast"], found["hmp"]
            print(f"{case:<22}{operation:<14}{grad:<6}{peer:>10}{ours:>10}{ours / peer:>8.3f}")


if __name__ == "__main__":
    main()
