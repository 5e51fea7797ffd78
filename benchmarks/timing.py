"""Timing shared by the benchmarks: interleaved rounds in one process, medians, ratios against a peer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field


@dataclass
class Contender:
    """Something to time: a call, and the state it runs in, entered once a round."""

    name: str
    call: Callable[[], object]
    state: Callable[[], AbstractContextManager[object]] = nullcontext
    seconds: list[float] = field(default_factory=list)

    def time(self, repeat: int, settle_seconds: float = 0.0) -> float:
        """Seconds of one call, from ``repeat`` calls; before, one call and ``settle_seconds`` of them unmeasured."""
        call = self.call
        with self.state():
            call()
            settled = time.perf_counter() + settle_seconds
            while time.perf_counter() < settled:
                call()
            begin = time.perf_counter()
            for _ in range(repeat):
                call()
            return (time.perf_counter() - begin) / repeat

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def ratio_to(self, peer: Contender) -> tuple[float, float, float]:
        """Time as a multiple of the peer's in the same round: median, and the middle half of the rounds."""
        ratios = sorted(mine / theirs for mine, theirs in zip(self.seconds, peer.seconds, strict=True))
        return statistics.median(ratios), ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]


def run(contenders: list[Contender], *, rounds: int, target_seconds: float, settle_seconds: float = 0.0) -> None:
    """Time all contenders in turn, round after round, each for about ``target_seconds``.

    Before each timing the contender runs for ``settle_seconds`` unmeasured.
    """
    repeats = []
    for one in contenders:
        short = one.time(1) < target_seconds
        repeats.append(max(1, int(target_seconds / max(one.time(20), 1e-9))) if short else 1)
    for round_number in range(rounds):
        order = list(zip(contenders, repeats, strict=True))
        for one, repeat in order if round_number % 2 == 0 else reversed(order):
            one.seconds.append(one.time(repeat, settle_seconds))
