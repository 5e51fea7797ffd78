"""Nothing is cast in the workers of a DataLoader (rule 11)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from helpers.lists import Converter
from helpers.probes import BF16, FP32, M, N, is_cast
from helpers.processes import python


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
    done = python(tmp_path / "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[torch.float32, torch.float32] torch.bfloat16"


def test_items_of_a_loader_without_workers_are_cast(converted: Converter) -> None:
    # There is no worker, so there is nothing to protect by rule 11; the dataset runs in the program's own thread.
    converted(bf16=["mm"])
    assert [item.dtype for item in DataLoader(Products(), batch_size=None)] == [BF16] * 3
