"""Memory that runs out: an allocation of the core fails, the call raises an error or works, and the process lives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from helpers.processes import run_script

SCRIPT = """
import ctypes, sys, threading
import torch
from habana_mp import hmp

torch.set_num_threads(1)
library = ctypes.CDLL(sys.argv[1])
library.fail_allocation.argtypes, library.stop_failing.restype = [ctypes.c_uint64], ctypes.c_uint64
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
x = torch.ones(4, 8)

def convert():
    hmp.convert(report="lines", log=sys.argv[2], rules={"linear @ 0": "fp32"})

def call():
    model(x).float().sum().backward()
    with hmp.autocast("cpu"), torch.no_grad():
        return torch.cat([model(x), hmp.op_wrap(lambda y: y + y, to="bf16")(x)])

def begin():
    hmp.restore()
    convert()
    call()

def nothing():
    pass

# What is to be done before each attempt, and the attempt.
attempts = {
    "convert": (hmp.restore, convert),
    "call": (nothing, call),
    "call in a new thread": (nothing, call),
    "report": (nothing, lambda: str(hmp.report(show=False))),
    "restore": (begin, hmp.restore),
}
begin()
expected = call()
for name, (prepare, work) in attempts.items():
    failed = []

    def attempt(number):
        library.fail_allocation(number)
        try:
            work()
        except Exception as error:
            failed.append(type(error).__name__)
        finally:
            left.append(number - library.stop_failing())

    begin()
    for number in range(1, 101):
        left = []
        prepare()
        if name == "call in a new thread":
            thread = threading.Thread(target=attempt, args=(number,))
            thread.start()
            thread.join()
        else:
            attempt(number)
        if left[0] > 0:
            break
    begin()
    assert torch.equal(call(), expected), name
    hmp.restore()
    assert torch.mm(x, x.t()).dtype is torch.float32, name
    print(f"{name}: {number} attempts, {sorted(set(failed))}", flush=True)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("library") / "failing_allocations.so"
    compiler = ["g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC"]
    subprocess.run([*compiler, Path(__file__).with_name("failing_allocations.cpp"), "-o", made], check=True)
    return made


def test_the_process_lives_whichever_of_the_first_hundred_allocations_fails(library: Path, tmp_path: Path) -> None:
    done = run_script(SCRIPT, str(library), str(tmp_path / "log.txt"), LD_PRELOAD=str(library))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'MemoryError'" in done.stdout
