"""A process may be forked while its other threads work: its child computes what the parent does, as fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.processes import python, run_script

FORKS = Path(__file__).with_name("forks.py")


#: By what happens in other threads while the process is forked, how often it is: forks.py says more.
ROUNDS = {"beside-threads": 4, "cached-weight": 6, "conversions": 4}


@pytest.mark.parametrize("beside", ROUNDS)
def test_a_child_forked_beside_busy_threads_does_what_its_parent_does(beside: str) -> None:
    done = python(FORKS, beside, "--rounds", str(ROUNDS[beside]))
    assert done.returncode == 0, done.stderr[-3000:]


THREADS = """
import os, signal, torch
from habana_mp import hmp

def tasks():
    return len(os.listdir("/proc/self/task"))

def work():
    torch.ones(1 << 22).exp()
    return torch.sigmoid(torch.ones(1 << 22)).sum()

torch.set_num_threads(2)
hmp.convert()
expected = work()
parent = tasks()
child = os.fork()
if child == 0:
    signal.alarm(60)
    before = tasks()
    same = torch.equal(work(), expected)
    # at most as many threads as the parent has: none of our own beside OpenMP's
    os._exit(0 if (before, same) == (1, True) and tasks() <= parent else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(work(), expected)
print("done")
"""


def test_a_child_computes_on_one_team_of_threads_as_its_parent_does() -> None:
    done = run_script(THREADS)
    assert done.stdout.strip() == "done", done.stderr
