"""What the tests of packed weights share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest

from habana_mp.patches.torch import weight_cache
from helpers import processor
from helpers.packed import assume


@pytest.fixture(autouse=True)
def keep_small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of tests are small, and kept all the same where a gradient is recorded."""
    monkeypatch.setattr(weight_cache, "LEAST_TRACKED", 0)


@pytest.fixture
def measured_again() -> Iterator[None]:
    yield
    processor.measure_packing()


@pytest.fixture(params=get_args(processor.Form))
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What weights are packed for, whatever a measurement would say."""
    assume(request.param, monkeypatch)


@pytest.fixture(params=["panels", "panels in any order"])
def panels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own kernels only."""
    assume(request.param, monkeypatch)


@pytest.fixture
def library() -> None:
    processor.assume_packing("library")
