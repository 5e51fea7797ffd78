"""Nothing is cast in the workers of a DataLoader (rule 11)."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from helpers.lists import Converter
from helpers.probes import is_cast

BF16, FP32 = torch.bfloat16, torch.float32
M = torch.linspace(0.1, 0.9, 16).reshape(4, 4)
N = M.t().contiguous() * 0.7


class Products(Dataset[torch.Tensor]):
    """Items that are computed by a covered operation."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.mm(M, N)


def test_nothing_is_cast_in_forked_workers(converted: Converter) -> None:
    converted(bf16=["mm"])
    loader = DataLoader(Products(), batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert [item.dtype for item in loader] == [FP32] * 3
    assert is_cast()


SPAWNED = """
import torch
from torch.utils.data import DataLoader, Dataset
from habana_mp import hmp

hmp.convert()

class Products(Dataset):
    def __len__(self): return 2
    def __getitem__(self, index): return torch.mm(torch.eye(2), torch.eye(2))

if __name__ == "__main__":
    loader = DataLoader(Products(), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    print([item.dtype for item in loader], torch.mm(torch.eye(2), torch.eye(2)).dtype)
"""


def test_nothing_is_cast_in_spawned_workers_that_run_the_script_again(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SPAWNED)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[torch.float32, torch.float32] torch.bfloat16"


def _tell(queue: Any) -> None:
    queue.put(is_cast())


def test_a_forked_process_that_is_no_worker_casts(converted: Converter) -> None:
    converted(bf16=["mm"])
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_tell, args=(queue,))
    process.start()
    assert queue.get() is True
    process.join()


def test_items_of_a_loader_without_workers_are_cast(converted: Converter) -> None:
    # There is no worker, so there is nothing to protect by rule 11; the dataset runs in the program's own thread.
    converted(bf16=["mm"])
    assert [item.dtype for item in DataLoader(Products(), batch_size=None)] == [BF16] * 3
