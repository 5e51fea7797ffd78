"""Any public function may be the first of a process."""

from __future__ import annotations

from helpers.processes import run_script

#: Forks for each call, so that none of them is made after another one.
FIRST = """
import os, threading, torch
from habana_mp import hmp

a = torch.ones(4, 4)

def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

def after_an_error():
    try:
        hmp.convert(preset="none")
    except ValueError:
        hmp.restore()

def in_region():
    with hmp.disable_casts():
        hmp.restore()
    hmp.restore()

CALLS = {
    "restore": hmp.restore,
    "restore in a thread": lambda: in_thread(hmp.restore),
    "restore after an error": after_an_error,
    "restore in a region": in_region,
    "report": lambda: (hmp.report(show=False), hmp.restore()),
    "reset_report": lambda: (hmp.reset_report(), hmp.restore()),
    "is_converted": lambda: (hmp.is_converted(), hmp.restore()),
    "op_wrap": lambda: (hmp.op_wrap(lambda x: x @ x, to="bf16")(a), hmp.restore()),
    "autocast": lambda: (hmp.autocast("cpu"), hmp.restore()),
    "autocast, off": lambda: (hmp.autocast("cpu", enabled=False).__enter__(), hmp.restore()),
    "O0": lambda: (hmp.convert("O0"), hmp.restore()),
}
failed = []
for name, call in CALLS.items():
    child = os.fork()
    if child == 0:
        call()
        assert torch.mm(a, a).dtype is torch.float32
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        failed.append((name, status))
print(failed)
"""


def test_any_function_may_be_the_first_that_is_called() -> None:
    done = run_script(FIRST)
    assert done.stdout == "[]\n", done.stdout + done.stderr
