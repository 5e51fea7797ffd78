"""Processes that have loaded the pretended accelerator and run the bodies of tests."""

from __future__ import annotations

import os
from multiprocessing import connection

import torch
from torch import distributed as dist

from helpers import pretended
from helpers.ranks import WORLD, Ranks, answer

BACKENDS = "cpu:gloo,pretended:pretended_gloo"


def serve(_rank: int, _store: str, pipe: connection.Connection) -> None:
    torch.set_num_threads(1)
    pretended.load()
    answer(pipe)


def serve_rank(rank: int, store: str, pipe: connection.Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    pretended.load().set_device(rank)
    dist.init_process_group(BACKENDS, init_method=f"file://{store}", rank=rank, world_size=WORLD)
    answer(pipe)


class _Prepared(Ranks):
    """Builds the extension before the processes start, which have little time for it."""

    def _start(self) -> None:
        pretended.built()
        super()._start()


#: Runs the body of a test in a process with the device. Its parameters must be picklable.
on_the_device = _Prepared(serve, world=1).test
#: Runs the body of a test on two ranks, each with a device of its own.
on_two_devices = _Prepared(serve_rank).test
