"""The pretended accelerator does what a real one does, and refuses what a real one would not guarantee."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

import pytest
import torch
from torch import distributed as dist

from helpers.pretended.processes import on_the_device, on_two_devices

DEVICE = "pretended"


# ---- memory ----------------------------------------------------------------------------------------------------------


@on_the_device
def test_the_host_cannot_touch_the_memory() -> None:
    x = torch.ones(4, device=DEVICE)
    for touch in (lambda: ctypes.string_at(x.data_ptr(), 1), lambda: ctypes.memset(x.data_ptr(), 0, 1)):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            touch()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
    assert x.tolist() == [1.0] * 4


@on_the_device
def test_a_freed_block_waits_for_its_recorded_streams() -> None:
    here = torch.pretended
    other = here.Stream()

    def used_elsewhere(size: int, *, records: bool) -> int:
        x = torch.ones(size, device=DEVICE)
        other.wait_stream(here.current_stream())
        with here.stream(other):
            x.sum()
        if records:
            x.record_stream(other)
        return x.data_ptr()

    address = used_elsewhere(5000, records=True)
    assert torch.ones(5000, device=DEVICE).data_ptr() != address
    here.current_stream().wait_stream(other)
    both = [torch.ones(5000, device=DEVICE) for _ in range(2)]
    assert address in [one.data_ptr() for one in both]

    address = used_elsewhere(7000, records=False)
    again = torch.empty(7000, device=DEVICE)
    assert again.data_ptr() == address
    with pytest.raises(RuntimeError, match="the freed tensor lacks a record_stream"):
        again.zero_()
    here.synchronize()
    again.zero_()


# ---- streams ---------------------------------------------------------------------------------------------------------


@on_the_device
def test_a_stream_must_wait_for_what_it_uses() -> None:
    here = torch.pretended
    first, second = here.current_stream(), here.Stream()
    x = torch.ones(3, device=DEVICE)
    with here.stream(second):
        with pytest.raises(RuntimeError, match=r"used on stream pretended:0/\d+ before the write of stream"):
            x + 1
        second.wait_stream(first)
        x + 1
    with pytest.raises(RuntimeError, match="before the read of stream"):
        x.add_(1)
    event = second.record_event()
    first.wait_event(event)
    x.add_(1)
    assert x.tolist() == [2.0] * 3


@on_the_device
def test_numbers_reach_the_host_when_it_waits() -> None:
    here = torch.pretended
    x = torch.full((3,), 7.0, device=DEVICE)
    found = torch.zeros(3).pin_memory()
    before = here.synchronizations()
    found.copy_(x, non_blocking=True)
    assert here.synchronizations() == before
    assert found.tolist() == [0.0] * 3
    here.current_stream().synchronize()
    assert found.tolist() == [7.0] * 3


@on_the_device
def test_waits_of_the_host_are_counted() -> None:
    here = torch.pretended
    x = torch.arange(4.0, device=DEVICE)
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "a sum": (lambda: (x + x).sum(), 0),
        "item": (lambda: x[1].item(), 1),
        "cpu": (x.cpu, 1),
        "a mask": (lambda: x[x > 1], 1),
        "nonzero": (x.nonzero, 1),
        "an index": (lambda: x[torch.tensor([0, 2], device=DEVICE, dtype=torch.long)], 1),  # of the index's numbers
        "synchronize": (here.synchronize, 1),
    }
    for name, (way, expected) in ways.items():
        before = here.synchronizations()
        way()
        assert here.synchronizations() - before == expected, name


@on_the_device
def test_devices_have_streams_and_memory_of_their_own() -> None:
    here = torch.pretended
    assert here.device_count() == torch.accelerator.device_count() == 2
    x = torch.ones(3, device="pretended:0")
    with here.device(1):
        assert here.current_device() == 1
        y = torch.ones(3, device=DEVICE)
    assert (y.device.index, here.current_device()) == (1, 0)
    with pytest.raises(RuntimeError, match="two devices, pretended:0 and pretended:1"):
        x + y
    with pytest.raises(RuntimeError, match="two devices, pretended:0 and cpu"):
        x + torch.ones(3)
    assert (x.to("pretended:1") + y).tolist() == [2.0] * 3
    assert (y.to("pretended:0") + x).tolist() == [2.0] * 3


# ---- torch's own tools -----------------------------------------------------------------------------------------------


@on_the_device
def test_a_graph_runs_again_over_the_same_memory() -> None:
    here = torch.pretended
    weight, x = torch.randn(4, 4, device=DEVICE), torch.ones(4, 4, device=DEVICE)
    graph = here.Graph()
    with here.graph(graph):
        assert here.is_current_stream_capturing()
        result = (torch.relu(x @ weight) + 1).clone()
        with pytest.raises(RuntimeError, match="cannot wait for a device during a capture"):
            result.sum().item()
    assert not here.is_current_stream_capturing()
    x.copy_(torch.randn(4, 4))
    weight.mul_(0.5)
    graph.replay()
    assert torch.equal(result, torch.relu(x @ weight) + 1)
    x.mul_(2)
    other = here.Stream()
    with here.stream(other), pytest.raises(RuntimeError, match=f"used on stream pretended:0/{other.stream_id} before"):
        graph.replay()


@on_the_device
def test_freed_memory_is_overwritten() -> None:
    freed = torch.ones(600, device=DEVICE)
    address = freed.data_ptr()
    del freed
    again = torch.empty(600, device=DEVICE)
    assert again.data_ptr() == address
    assert again.isnan().all()


# ---- two processes ---------------------------------------------------------------------------------------------------


@on_two_devices
def test_a_collective_runs_on_a_stream_of_its_own() -> None:
    device = torch.device(DEVICE, dist.get_rank())
    x = torch.full((4,), float(dist.get_rank() + 1), device=device)
    work = dist.all_reduce(x, async_op=True)
    with pytest.raises(RuntimeError, match="before the write of stream"):
        x + 1
    assert work is not None
    work.wait()
    assert x.tolist() == [3.0] * 4
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert x.tolist() == [3.0] * 4
    both = torch.empty(8, device=device)
    dist.all_gather_into_tensor(both, x)
    dist.reduce_scatter_tensor(x, both)
    assert x.tolist() == [6.0] * 4
