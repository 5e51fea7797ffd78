"""Fixtures of the tests of weights."""

from __future__ import annotations

import pytest
import torch

from habana_mp.patches.torch import weight_cache


@pytest.fixture(autouse=True)
def cache_small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of tests are small, and cached all the same where a gradient is recorded."""
    monkeypatch.setattr(weight_cache, "LEAST_TRACKED", 0)


@pytest.fixture
def alike() -> None:
    """The same numbers in each run."""
    torch.manual_seed(0)
