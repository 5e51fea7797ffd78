"""A preset is one file: that of CONTRIBUTING.md is there as soon as the file is."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from habana_mp import hmp
from habana_mp.policy import presets

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def preset_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its name, while its file lies among the others."""
    page = PAGE.read_text("utf-8")
    (name,) = re.findall(r'is `preset="(.*?)"`', page)
    (content,) = re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    lists = tmp_path / "lists"
    shutil.copytree(presets.DIRECTORY, lists)
    (lists / "presets" / f"{name}.json").write_text(content, "utf-8")
    monkeypatch.setattr(presets, "DIRECTORY", lists)
    caches = presets.presets, presets.shipped_names
    for one in caches:
        one.cache_clear()
    yield name
    for one in caches:
        one.cache_clear()


def test_the_preset_of_the_page_says_what_runs_how(preset_of_the_page: str) -> None:
    hmp.convert(preset=preset_of_the_page)
    x = torch.ones(2, 2)
    assert torch.matmul(x, x).dtype is torch.bfloat16
    assert torch.mean(x.bfloat16()).dtype is torch.float32
    assert torch.nn.functional.mse_loss(x.bfloat16(), x.bfloat16()).dtype is torch.float32
    assert torch.mm(x, x).dtype is torch.float32
    shipped = list((presets.DIRECTORY / "presets").glob("*.json"))
    assert list(presets.presets()).index(preset_of_the_page) == len(shipped) - 1  # without an order it is the last
