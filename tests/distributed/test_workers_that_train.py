"""Processes that inherit or share weights, and loaders with workers, train as one process does."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.training_on_ranks import STEPS, Batch, adamw, backward, batch, network, step, weights

FP32 = torch.float32

#: A forked child may not use the parent's threads; and figures to be compared are summed in one order.
pytestmark = pytest.mark.usefixtures("one_thread")


def within(seconds: float, process: Any) -> None:
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        pytest.fail("the process did not end in time")
    assert process.exitcode == 0


def train_alone(numbers: Iterable[int] = range(STEPS)) -> list[torch.Tensor]:
    model = network()
    optimizer = adamw(model)
    for number in numbers:
        backward(model, batch(0, number))
        step(optimizer)
    return weights(model)


def _train_and_save(path: str) -> None:
    torch.set_num_threads(1)
    torch.save(train_alone(), path)


def test_a_forked_server_trains_as_its_parent(tmp_path: Path) -> None:
    hmp.convert()
    before = train_alone()
    process = multiprocessing.get_context("fork").Process(target=_train_and_save, args=(str(tmp_path / "w"),))
    process.start()
    after = train_alone()
    within(60, process)
    assert_same(before, after)
    assert_same(torch.load(tmp_path / "w"), before)


def _train_together(model: nn.Module) -> None:
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(20):
        backward(model, batch(0, number % 2))
        step(optimizer)


def test_processes_that_share_their_weights_train_them_in_float32() -> None:
    model = network().share_memory()
    places = [one.data_ptr() for one in model.parameters()]
    x, y = batch(0)
    before = F.cross_entropy(model(x), y).item()
    hmp.convert()
    process = torch.multiprocessing.get_context("fork").Process(target=_train_together, args=(model,))
    process.start()
    _train_together(model)
    within(60, process)
    assert {one.dtype for one in model.parameters()} == {FP32}
    assert [one.data_ptr() for one in model.parameters()] == places
    hmp.restore()
    assert F.cross_entropy(model(x), y).item() < 0.8 * before


class Products(Dataset[Batch]):
    """Items that are computed by covered operations."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Batch:
        x, y = batch(0, index)
        return torch.mm(x, torch.eye(16)), y


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_training_from_workers_with_the_log_on_neither_blocks_nor_differs(start: str, tmp_path: Path) -> None:
    path = tmp_path / "casts.jsonl"
    hmp.convert(log=path)
    expected = train_alone([*range(STEPS)] * 2)
    workers = 2 if start == "fork" else 1
    loader = DataLoader(
        Products(), batch_size=None, num_workers=workers, multiprocessing_context=start, persistent_workers=True
    )
    model = network()
    optimizer = adamw(model)
    for _ in range(2):
        for items in loader:
            assert items[0].dtype is FP32
            backward(model, items)
            step(optimizer)
    assert_same(weights(model), expected)
    hmp.restore()
    assert all(json.loads(line) for line in path.read_text().splitlines())
