"""Fixtures of the tests of weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from habana_mp.patches.torch import weight_cache
from helpers import processor
from helpers.products import assume


@pytest.fixture(autouse=True)
def keep_small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of tests are small, and kept all the same where a gradient is recorded."""
    monkeypatch.setattr(weight_cache, "LEAST_TRACKED", 0)


@pytest.fixture
def measured_again() -> Iterator[None]:
    yield
    processor.measure_products()


@pytest.fixture(params=["own", "own in any order"])
def own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's kernels compute products: where they give torch's bits, or with values whose sums are exact."""
    assume(request.param, monkeypatch)


@pytest.fixture
def library() -> None:
    processor.assume_products("library")
