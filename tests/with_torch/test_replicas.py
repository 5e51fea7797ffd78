"""nn.DataParallel: replicas are cast as the thread that calls them."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.nn.parallel import parallel_apply

from habana_mp import hmp
from helpers.training import loader, network

BF16, FP32 = torch.bfloat16, torch.float32

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest.fixture
def accelerator_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """What parallel_apply asks of an accelerator, answered for the CPU; the threads and their autocast are torch's."""
    answers = {
        "is_available": lambda: True,
        "current_accelerator": lambda: torch.device("cpu"),
        "current_stream": lambda _: contextlib.nullcontext(),
        "device_index": lambda _: contextlib.nullcontext(),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.accelerator, name, answer)


def in_threads() -> list[torch.dtype]:
    x, _ = next(iter(loader()))
    return [one.dtype for one in parallel_apply([network(), network()], [x, x], devices=[0, 0])]


@pytest.mark.usefixtures("accelerator_stand_in")
def test_replicas_are_cast_as_the_thread_that_calls_them() -> None:
    assert in_threads() == [FP32] * 2
    hmp.convert()
    assert in_threads() == [BF16] * 2
    with hmp.disable_casts():
        assert in_threads() == [FP32] * 2
    with torch.autocast("cpu", enabled=False):
        assert in_threads() == [FP32] * 2
    assert in_threads() == [BF16] * 2
    hmp.restore()
    with hmp.autocast("cpu", torch.float16):
        assert in_threads() == [torch.float16] * 2
    assert in_threads() == [FP32] * 2
