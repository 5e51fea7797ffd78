"""Two processes that run a test's body as the two ranks of one gloo group. They are reused for the next test."""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from torch import distributed as dist

from habana_mp import hmp
from helpers.state_of_torch import assert_torch_is_restored

WORLD = 2
TO_START, TO_RUN, TO_FOLLOW = 120.0, 60.0, 5.0  # seconds


def serve(rank: int, store: str, pipe: connection.Connection) -> None:
    """Runs one body after another as a rank, and sends back the failure of each, or None."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    answer(pipe)


def answer(pipe: connection.Connection) -> None:
    """Runs the bodies that the pipe names, until it is closed."""
    pipe.send_bytes(pickle.dumps(None))
    while True:
        try:
            module, name, parameters = pickle.loads(pipe.recv_bytes())
        except EOFError:
            os._exit(0)  # without notice to the other rank, which may have ended
        try:
            getattr(importlib.import_module(module), name).__wrapped__(**parameters)
            hmp.restore()
            assert_torch_is_restored()
            failure = None
        except BaseException:
            failure = traceback.format_exc()
        pipe.send_bytes(pickle.dumps(failure))


class Ranks:
    """The processes, started when they are first needed. After a failure the next test gets new ones."""

    def __init__(self, serve: Callable[[int, str, connection.Connection], None] = serve, world: int = WORLD) -> None:
        self._serve, self._world = serve, world
        self._processes: list[Any] = []
        self._pipes: list[connection.Connection] = []

    def _start(self) -> None:
        context = torch.multiprocessing.get_context("spawn")
        store = Path(tempfile.mkdtemp()) / "store"
        for rank in range(self._world):
            ours, theirs = context.Pipe()
            process = context.Process(target=self._serve, args=(rank, str(store), theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        self._answers(TO_START)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def run(self, module: str, name: str, parameters: dict[str, Any]) -> None:
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send_bytes(pickle.dumps((module, name, parameters)))
        self._answers(TO_RUN)

    def _answers(self, seconds: float) -> None:
        """Waits for all ranks. If a rank has failed, the other one may wait for it, so the wait is short then."""
        deadline = time.monotonic() + seconds
        failures: list[str] = []
        silent = dict(enumerate(self._pipes))
        while silent:
            ready = connection.wait(list(silent.values()), max(0.0, deadline - time.monotonic()))
            if not ready:
                failures += [f"rank {rank}: no answer in time" for rank in silent]
                break
            for rank in [rank for rank, pipe in silent.items() if pipe in ready]:
                try:
                    failure = pickle.loads(silent.pop(rank).recv_bytes())
                except EOFError:
                    failure = "it died"
                if failure is not None:
                    failures.append(f"rank {rank}: {failure}")
                    deadline = min(deadline, time.monotonic() + TO_FOLLOW)
        if failures:
            self.stop()
            raise AssertionError("\n".join(failures))

    def test(self, body: Callable[..., None]) -> Callable[..., None]:
        """Runs the body of a test in each of the processes. Its parameters must be picklable."""

        @functools.wraps(body)
        def test(**parameters: Any) -> None:
            self.run(body.__module__, body.__name__, parameters)

        return test


ranks = Ranks()

#: Runs the body of a test on two ranks. Its parameters must be picklable.
on_two_ranks = ranks.test
