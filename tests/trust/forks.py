"""Forks beside other threads; each child computes what its parent does, and ends.

    python tests/trust/forks.py beside-threads | cached-weight | conversions [--rounds N]

beside-threads: while other threads cast, step and write lines of the log.
cached-weight: while another thread makes the cast of a weight, which a child must cache again.
conversions: while another thread converts, restores and shows reports; a child then converts.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from habana_mp import hmp

#: A child that takes longer waits for something that will never come.
SECONDS = 30


def ended_well(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def end_child(work: Callable[[], Any]) -> None:
    """Runs `work` in a child, then ends the child."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


class Model:
    def __init__(self, size: int = 64) -> None:
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(size, size)
        self.optimizer = torch.optim.AdamW(self.layer.parameters(), lr=0.01)
        self.inputs = torch.randn(8, size)

    def train(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        self.layer(self.inputs).float().sum().backward()
        self.optimizer.step()
        return self.answer()

    def answer(self) -> torch.Tensor:
        with torch.no_grad():
            return self.layer(self.inputs).float()


def compute() -> torch.Tensor:
    """A call, steps, a report, a line of the log, large casts."""
    model = Model()
    result = torch.stack([model.train() for _ in range(3)])
    assert hmp.report(show=False).weights is not None
    with torch.no_grad():
        assert torch.mm(torch.ones(600, 512), torch.ones(512, 2)).dtype == torch.bfloat16
    return result


def check(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(result, expected), (result, expected)


def beside_threads(rounds: int) -> None:
    log = tempfile.NamedTemporaryFile(suffix=".txt")  # noqa: SIM115  # until the process ends
    hmp.convert(log=log.name)
    expected = compute()
    stop = threading.Event()

    def casts() -> None:
        x, y = torch.ones(1200, 512), torch.ones(512, 2)
        with torch.no_grad():
            while not stop.is_set():
                torch.mm(x, y)

    def steps() -> None:
        weight = torch.nn.Parameter(torch.ones(1 << 19))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        weight.grad = torch.ones_like(weight)
        while not stop.is_set():
            optimizer.step()

    def reads() -> None:
        while not stop.is_set():
            hmp.report(show=False)
            torch.mm(torch.ones(2, 2), torch.ones(2, 2))

    fork_beside((casts, steps, reads), stop, lambda: check(compute(), expected), rounds, 0.001)
    print("beside-threads:", rounds)


def fork_beside(
    works: tuple[Callable[[], None], ...],
    stop: threading.Event,
    in_child: Callable[[], None],
    rounds: int,
    pause: float,
) -> None:
    """Forks children at several moments while each thread does its work, until `stop` is set."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    try:
        for i in range(rounds):
            time.sleep(pause * (i % 7))
            child = os.fork()
            if child == 0:
                signal.alarm(SECONDS)
                end_child(in_child)
            assert ended_well(child), f"round {i}"
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def cached_weight(rounds: int) -> None:
    hmp.convert()
    layer = torch.nn.Linear(2048, 2048)  # so large that most forks find its cast being made
    inputs = torch.ones(1, 2048)
    stop = threading.Event()

    def owners() -> int:
        return torch._C._storage_Use_Count(layer.weight.untyped_storage()._cdata)

    owners_before = owners()

    def refresh() -> None:
        with torch.no_grad():
            while not stop.is_set():
                layer.weight.fill_(1)
                for _ in range(3):  # a weight that changes at each use has no cached cast
                    layer(inputs)

    def is_cached_again() -> None:
        # Perhaps torch held the memory in the other thread; our kernels, which hold it twice, no longer do.
        assert owners() <= owners_before + 1
        with torch.no_grad():
            for _ in range(3):
                layer(inputs)
            before = hmp.report(show=False).weights
            result = layer(inputs)
            after = hmp.report(show=False).weights
        assert after.hits > before.hits, (before, after)
        expected = torch.nn.functional.linear(inputs.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16())
        torch.testing.assert_close(result.float(), expected.float(), rtol=2e-2, atol=2e-2)

    is_cached_again()  # so that no child imports modules anew
    fork_beside((refresh,), stop, is_cached_again, rounds, 0.001)
    print("cached-weight:", rounds)


def conversions(rounds: int) -> None:
    stop = threading.Event()

    def convert_and_report() -> None:
        while not stop.is_set():
            hmp.convert(report="modules")
            str(hmp.report(show=False))
            hmp.restore()

    def convert_once() -> None:
        hmp.convert()
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.bfloat16
        str(hmp.report(show=False))
        hmp.restore()
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32

    fork_beside((convert_and_report,), stop, convert_once, rounds, 0.013)
    print("conversions:", rounds)


def main() -> None:
    ways = {"beside-threads": beside_threads, "cached-weight": cached_weight, "conversions": conversions}
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=ways)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)
    # oneDNN's cache of primitives has a lock. If another thread holds it during a fork, a product of a new shape waits
    # for it in the child without end, in plain torch too.
    torch.backends.mkldnn.set_flags(_enabled=False)
    ways[given.what](given.rounds)


if __name__ == "__main__":
    main()
