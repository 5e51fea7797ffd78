"""What the tests on two ranks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.ranks import ranks


@pytest.fixture(scope="session", autouse=True)
def ranks_end() -> Iterator[None]:
    """One pair of processes serves all tests."""
    yield
    ranks.stop()
