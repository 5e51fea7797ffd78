"""Threads, forks and other children, the end of the interpreter, a second import, interrupts."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp
from helpers.each import each
from helpers.probes import BF16, FP32, M, dtype_of_product
from helpers.processes import run_script

pytestmark = pytest.mark.usefixtures("interruptible")


def assert_quiet(done: subprocess.CompletedProcess[str], output: str) -> None:
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", output)


@pytest.mark.parametrize("region", [hmp.disable_casts, lambda: torch.autocast("cpu", enabled=False)])
def test_a_region_holds_for_the_thread_that_enters_it(region: Callable[[], Any]) -> None:
    hmp.convert()
    inside, done = threading.Event(), threading.Event()
    there: list[torch.dtype] = []

    def work() -> None:
        with region():
            there.append(dtype_of_product())
            inside.set()
            done.wait(30)
            there.append(dtype_of_product())
        there.append(dtype_of_product())

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(30)
    assert dtype_of_product() is BF16
    with hmp.disable_casts():
        assert dtype_of_product() is FP32
    done.set()
    thread.join()
    assert there == [FP32, FP32, BF16]


def test_models_train_side_by_side_each_as_if_alone() -> None:
    hmp.convert()

    def train(seed: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        weight = torch.nn.Parameter(torch.rand(4, 4, generator=generator))
        optimizer = torch.optim.Adam([weight], lr=0.1)
        for step in range(10):
            optimizer.zero_grad()
            with hmp.disable_casts() if (step + seed) % 2 else torch.enable_grad():
                loss = F.softmax(torch.mm(M, weight).relu(), -1).float().pow(2).sum()
            loss.backward()
            optimizer.step()
        return [weight.detach()]

    alone = [train(seed) for seed in range(6)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        together = list(pool.map(train, range(6)))
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one[0], other[0])


BEGIN = """
import atexit, os, sys, threading, time
import torch
from habana_mp import hmp
from habana_mp.patches.tools.when_imported import WhenImported
M = torch.rand(4, 4)
hmp.convert(log=sys.argv[1] if len(sys.argv) > 1 else None)
weight = torch.nn.Parameter(torch.rand(4, 4))
def work():
    (torch.mm(M, weight) @ M).relu().float().sum().backward()
    return torch.mm(M, M).dtype
work()
"""
ENDINGS = {
    "covered calls at exit": "atexit.register(lambda: print(work(), flush=True))",
    "restore, then calls at exit": "atexit.register(work); atexit.register(hmp.restore)",
    "a thread of casts": "threading.Thread(target=lambda: [work() for _ in range(50)]).start()",
    "a destructor": "class Late:\n    def __del__(self): torch.mm(M, M); hmp.restore()\nlate = Late()",
    "os._exit": "sys.stdout.flush(); os._exit(0)",
}


@each("ending", ENDINGS)
def test_a_process_ends_in_peace_with_casts_and_the_log_on(ending: str, tmp_path: Path) -> None:
    done = run_script(BEGIN + ENDINGS[ending], str(tmp_path / "log.txt"))
    assert_quiet(done, "torch.bfloat16" if ending == "covered calls at exit" else "")
    if ending != "os._exit":
        assert "casting" in (tmp_path / "log.txt").read_text()


def test_a_fork_inside_of_a_region_is_inside_of_it() -> None:
    hmp.convert()
    with hmp.disable_casts():
        pid = os.fork()
        if pid == 0:
            os._exit(0 if dtype_of_product() is FP32 else 1)
        assert os.waitpid(pid, 0)[1] == 0
    assert dtype_of_product() is BF16


def report_kinds(queue: Any, convert: bool) -> None:
    """What a child process does (module level: spawned children find it by name)."""
    torch.set_num_threads(1)
    before = hmp.is_converted(), dtype_of_product()
    if convert:
        hmp.convert()
    queue.put((before, dtype_of_product(), [one.dtype for one in (torch.relu(M), F.softmax(M.bfloat16(), -1))]))


@pytest.mark.parametrize(("method", "inherits"), [("fork", True), ("spawn", False)])
def test_a_child_process_inherits_only_by_fork_and_may_convert(method: str, inherits: bool) -> None:
    context = multiprocessing.get_context(method)
    hmp.convert()
    queue = context.SimpleQueue()
    child = context.Process(target=report_kinds, args=(queue, True))
    child.start()
    before, after, others = queue.get()
    child.join()
    assert child.exitcode == 0
    assert before == ((True, BF16) if inherits else (False, FP32))
    assert (after, others) == (BF16, [BF16, FP32])


AGAIN = """
import sys
def forget():
    for name in [name for name in sys.modules if name.split(".")[0] == "habana_mp"]: del sys.modules[name]
old = hmp
forget()
from habana_mp import hmp
from habana_mp.patches.tools.when_imported import WhenImported
assert hmp is not old
for call in (hmp.convert, hmp.restore):
    try: call()
    except RuntimeError as error: print("imported a second time" in str(error))
print(old.is_converted(), torch.mm(M, M).dtype)
old.restore()
print(torch.mm(M, M).dtype, torch.nn.functional.normalize.__code__.co_consts[-1])
hmp.convert()
print(torch.mm(M, M).dtype)
with old.disable_casts(): print(torch.mm(M, M).dtype)
hmp.restore()
print(torch.mm(M, M).dtype)
"""


def test_a_second_import_while_converted_is_a_clear_error_and_the_first_one_restores() -> None:
    plain = F.normalize.__code__.co_consts[-1]
    expected = ["True", "True", "True torch.bfloat16", f"torch.float32 {plain}"]
    expected += ["torch.bfloat16", "torch.float32", "torch.float32"]
    assert_quiet(run_script(BEGIN + AGAIN, os.devnull), "\n".join(expected))


def cast_for_ever() -> None:
    while True:
        torch.softmax(torch.mm(M, M).relu() + M, -1)


def test_an_interrupt_while_operations_are_cast_leaves_everything_in_order() -> None:
    hmp.convert()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for delay in range(1, 30):
            signal.setitimer(signal.ITIMER_REAL, delay * 0.0007)
            with pytest.raises(KeyboardInterrupt):
                cast_for_ever()
            assert dtype_of_product() is BF16
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    hmp.restore()
    assert dtype_of_product() is FP32
