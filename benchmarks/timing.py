"""Timing shared by the benchmarks: interleaved rounds, in one process or several, medians, ratios against a peer."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TextIO


@dataclass
class Contender:
    """A call to time, and the state in which it runs, which is entered once in each round."""

    name: str
    call: Callable[[], object]
    state: Callable[[], AbstractContextManager[object]] = nullcontext
    clock: Callable[[], float] = time.perf_counter
    seconds: list[float] = field(default_factory=list)

    def time(self, repeat: int, settle_seconds: float = 0.0) -> float:
        """Returns the mean seconds of ``repeat`` calls. Before these, it makes one call, and more calls for
        ``settle_seconds``."""
        call = self.call
        with self.state():
            call()
            settled = time.perf_counter() + settle_seconds
            while time.perf_counter() < settled:
                call()
            begin = self.clock()
            for _ in range(repeat):
                call()
            return (self.clock() - begin) / repeat

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def ratio_to(self, peer: Contender) -> tuple[float, float, float]:
        """Returns the time as a multiple of the peer's time in the same round: the median, and the middle half of the
        rounds."""
        ratios = sorted(mine / theirs for mine, theirs in zip(self.seconds, peer.seconds, strict=True))
        return statistics.median(ratios), ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]


class Elsewhere(Contender):
    """A contender in its own process, for state that belongs to a process: compiled code, an allocator's settings.

    The command's program calls :func:`serve`.
    """

    def __init__(self, name: str, command: list[str], **environment: str) -> None:
        super().__init__(name, lambda: None)
        self._command, pipe = command, subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **environment})
        self.difference = float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{' '.join(self._command)} ended with {self._process.wait()}")
        return answer

    def time(self, repeat: int, settle_seconds: float = 0.0) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{repeat} {settle_seconds}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def peak_megabytes(self) -> float:
        with open(f"/proc/{self._process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

    def page_faults(self) -> int:
        """Returns the number of pages so far that Linux had to provide, and to clear."""
        with open(f"/proc/{self._process.pid}/stat") as stat:
            return int(stat.read().rpartition(")")[2].split()[7])

    def close(self) -> None:
        self._process.communicate()


def serve(contender: Contender, difference: float, answers: TextIO) -> None:
    """The other side of :class:`Elsewhere`. Prints the error of the result, and then prints a time for each request."""
    print(difference, file=answers, flush=True)
    for line in sys.stdin:
        repeat, settle_seconds = line.split()
        print(contender.time(int(repeat), float(settle_seconds)), file=answers, flush=True)


def run(contenders: list[Contender], *, rounds: int, target_seconds: float, settle_seconds: float = 0.0) -> None:
    """Times all contenders in turn, round after round, each for about ``target_seconds``.

    Before each timing the contender runs for ``settle_seconds`` that are not timed.
    """
    repeats = []
    for one in contenders:
        short = one.time(1) < target_seconds
        repeats.append(max(1, int(target_seconds / max(one.time(20), 1e-9))) if short else 1)
    for round_number in range(rounds):
        order = list(zip(contenders, repeats, strict=True))
        for one, repeat in order if round_number % 2 == 0 else reversed(order):
            one.seconds.append(one.time(repeat, settle_seconds))
