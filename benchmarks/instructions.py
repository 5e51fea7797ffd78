"""Counts the instructions of one call by callgrind, for the calls of calls.py. Other load does not change the counts.

    python benchmarks/instructions.py [--steps | --seen | --rules | --pretended]

Takes less than a minute; needs valgrind and a C compiler. The emulated processor has AVX2, so kernels that need more
are not counted. Instead of these calls, --steps counts the shortest training steps of models.py, --seen counts the
calls with a report by lines and with the guard too, --rules counts calls in a module while rules name another module,
and --pretended counts calls on the tests' pretended accelerator with kernels that compute nothing, as if the device
were infinitely fast.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import models
import torch
import torch.nn.functional as F
from calls import RULED, Loop, beside_rules, cases
from states import autocast, converted

MARKS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; }
void zero(void) { CALLGRIND_ZERO_STATS; }
void dump(const char* name) { CALLGRIND_DUMP_STATS_AT(name); }
"""
STATES = {"autocast": autocast, "hmp": converted}
STEPS = ("linears-16-train", "softmax-16-train", "mlp-64-train")


class Counting:
    """Runs within callgrind, and writes one dump for each case and state, with their names."""

    def __init__(self, library: str) -> None:
        self.marks = ctypes.CDLL(library)
        torch.set_num_threads(1)
        self.marks.begin()

    def count(self, call: Callable[[], object], calls: int, case: str, state: str) -> None:
        """Counts the instructions of this many calls, after some calls that are not counted."""
        for _ in range(max(10, calls // 20)):
            call()
        self.marks.zero()
        for _ in range(calls):
            call()
        self.marks.dump(f"{calls}|{case}|{state}".encode())

    def seen(self) -> None:
        lines, guarded = partial(converted, report="lines"), partial(converted, guard=True)
        self.calls({**STATES, "lines": lines, "guard": guarded})

    def calls(self, states: Mapping[str, Any] = STATES) -> None:
        for case, grad, name, call in cases():
            for state, entered in states.items():
                with torch.set_grad_enabled(grad), entered():
                    self.count(call, 1000, f"{case}, {name}{', recorded' if grad else ''}", state)

    def pretended(self) -> None:
        """Counts the calls on the pretended accelerator, and such with a weight in float32, whose cast is cached."""
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
        device = importlib.import_module("helpers.pretended").load()
        weight = torch.nn.Parameter(torch.randn(128, 128, device="pretended"))
        lowered = torch.randn(4, 128, device="pretended", dtype=torch.bfloat16)
        with_weight = [("cached weight", grad, "F.linear", lambda: F.linear(lowered, weight)) for grad in (False, True)]
        device.empty_kernels(True)
        states = {"autocast": partial(autocast, "pretended"), "hmp": partial(converted, preset="torch-cuda")}
        for case, grad, name, call in (*cases("pretended"), *with_weight):
            for state, entered in states.items():
                with torch.set_grad_enabled(grad), entered():
                    self.count(call, 1000, f"{case}, {name}{', recorded' if grad else ''}", state)

    def rules(self) -> None:
        for name, call in beside_rules(torch.randn(4, 16)):
            for state, entered in RULED.items():
                with torch.no_grad(), entered():
                    self.count(Loop(call), 20, name, state)

    def steps(self) -> None:
        for name in STEPS:
            for state in STATES:
                with ExitStack() as around:
                    torch.manual_seed(0)
                    step, _ = models.SMALL_CASES[name].make(state, around)
                    self.count(step, 20, models.SMALL_CASES[name].title, state)


def counts_in(folder: Path) -> dict[str, dict[str, int]]:
    """Reads the dumps in a folder. Returns the instructions of one call, by case and state."""
    counts: dict[str, dict[str, int]] = {}
    for file in sorted(folder.glob("counts*"), key=lambda one: int(one.suffix[1:] or 0)):
        text = file.read_text("utf-8", errors="replace")
        trigger = re.search(r"^desc: Trigger: Client Request: (\d+)\|(.*)\|(.*)$", text, re.MULTILINE)
        total = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
        if trigger and total:
            counts.setdefault(trigger[2], {})[trigger[3]] = int(total[1]) // int(trigger[1])
    return counts


#: The options that count something else than calls.
MODES = {
    "steps": "short training steps",
    "seen": "calls with a report by lines, and with the guard",
    "rules": "calls beside a module that rules name",
    "pretended": "calls on the pretended accelerator",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, text in MODES.items():
        parser.add_argument(f"--{name}", dest="mode", action="store_const", const=name, default="calls", help=text)
    parser.add_argument("--within", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.within:
        getattr(Counting(given.within), given.mode)()
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "marks.c").write_text(MARKS, "utf-8")
        marks = folder / "marks.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", marks, folder / "marks.c"], check=True)
        callgrind = ["valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no"]
        callgrind.append(f"--callgrind-out-file={folder / 'counts'}")
        mode = [] if given.mode == "calls" else [f"--{given.mode}"]
        args = [sys.executable, "-W", "ignore", __file__, "--within", str(marks), *mode]
        # By another seed the counts differ by 2 %: tables of names have other collisions.
        settings = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        subprocess.run([*callgrind, *args], check=True, env={**os.environ, **settings})
        unit = "a step" if given.mode == "steps" else "a call, 4x16 tensors"
        print(f"torch {torch.__version__}, one thread; instructions of {unit}")
        counts = counts_in(folder)
        width = max(map(len, counts))
        if given.mode == "rules":
            for case, found in counts.items():
                print(f"{case:<{width}}  " + ", ".join(f"{state} {found[state] // 1000}" for state in RULED))
            return
        states = list(next(iter(counts.values())))
        print(f"{'case':<{width}}" + "".join(f"{state:>10}" for state in states) + f"{'ratio':>8}")
        for case, found in sorted(counts.items(), reverse=True):
            ratio = found["hmp"] / found["autocast"]
            print(f"{case:<{width}}" + "".join(f"{found[state]:>10}" for state in states) + f"{ratio:>8.3f}")


if __name__ == "__main__":
    main()
