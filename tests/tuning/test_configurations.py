"""The runs of a configuration."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from habana_mp.diagnosis.sites import Site
from habana_mp.reporting.records import Row
from habana_mp.tuning.configurations import Configurations, Rules


class Runner:
    """Waits in each run until as many runs as there are workers have begun."""

    preset, lower = "hmp-default", "bf16"

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.threads: set[int] = set()
        self._begun = threading.Barrier(workers)

    def run(self, rules: Rules, seed: int) -> tuple[Any, float]:
        self._begun.wait(timeout=60)
        self.threads.add(threading.get_ident())
        if seed == 5:
            raise ValueError("no such seed")
        return 1.0 + seed if rules is None else 1.5 + seed, 1.0

    def rows(self, rules: Rules, seed: int) -> tuple[Row, ...]:
        return ()

    def sites(self, seed: int) -> tuple[Site, ...]:
        return ()


def _configurations(runner: Runner, seeds: list[int]) -> Configurations:
    return Configurations(
        runner, lambda value, exact: value <= exact + 1, seeds, budget=None, path=None, progress=lambda _: None
    )


def test_seeds_run_at_the_same_time() -> None:
    runner = Runner(workers=2)
    known = _configurations(runner, [0, 1])
    assert known.passes(())
    assert known.count == 2
    assert [known.value(None, seed) for seed in (0, 1)] == [1.0, 2.0]
    assert [known.value((), seed) for seed in (0, 1)] == [1.5, 2.5]
    assert threading.get_ident() not in runner.threads


def test_one_worker_runs_in_the_thread_that_tunes() -> None:
    runner = Runner(workers=1)
    assert _configurations(runner, [0, 1, 2]).passes(())
    assert runner.threads == {threading.get_ident()}


def test_an_error_of_a_run_is_passed_on() -> None:
    with pytest.raises(ValueError, match="no such seed"):
        _configurations(Runner(workers=2), [0, 5]).passes(())
